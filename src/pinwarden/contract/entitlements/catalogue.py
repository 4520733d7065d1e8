"""The catalogue: entitlements of functions in the standard library and known packages.

A row is ``entitlements: names``. A name covers itself and its members, unless a longer name has its own row. ``()`` is
the result of a call, so ``Name()`` is an object of the class ``Name``. ``-`` means that no entitlement is needed. For
functions whose entitlements depend on an argument:

- ``mode@1``: by the file mode that is argument 1 (or ``mode=``);
- ``sql@0``: reads, or reads and writes files, by the SQL text that is argument 0.
"""

from __future__ import annotations

from typing import Final

STANDARD_LIBRARY: Final = """
mode@1: builtins.open io.open codecs.open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile tarfile.TarFile
mode@1: os.fdopen aiofiles.open anyio.open_file fsspec.open gzip.GzipFile wave.open dbm.open shelve.open
mode@0: pathlib.Path().open anyio.Path().open zipfile.Path().open
-: builtins pathlib.Path pathlib.Path() pathlib.Path.home pathlib.Path.cwd
filesystem:read: pathlib.Path().read_text pathlib.Path().read_bytes pathlib.Path().exists pathlib.Path().is_file
filesystem:read: pathlib.Path().is_dir pathlib.Path().is_symlink pathlib.Path().is_mount pathlib.Path().stat
filesystem:read: pathlib.Path().lstat pathlib.Path().iterdir pathlib.Path().glob pathlib.Path().rglob
filesystem:read: pathlib.Path().walk pathlib.Path().readlink pathlib.Path().samefile pathlib.Path().owner
filesystem:read: pathlib.Path().group pathlib.Path().is_socket pathlib.Path().is_fifo pathlib.Path().is_block_device
filesystem:write: pathlib.Path().write_text pathlib.Path().write_bytes pathlib.Path().mkdir pathlib.Path().touch
filesystem:write: pathlib.Path().unlink pathlib.Path().rmdir pathlib.Path().rename pathlib.Path().replace
filesystem:write: pathlib.Path().chmod pathlib.Path().lchmod pathlib.Path().symlink_to pathlib.Path().hardlink_to
filesystem:read filesystem:write: pathlib.Path().copy pathlib.Path().move pathlib.Path().copy_into
filesystem:read: anyio.Path() zipfile.Path()
filesystem:write: anyio.Path().write_text anyio.Path().write_bytes anyio.Path().mkdir anyio.Path().touch
filesystem:write: anyio.Path().unlink anyio.Path().rmdir anyio.Path().rename anyio.Path().replace
-: os os.path
subprocess: os.system os.popen os.fork os.forkpty os.posix_spawn os.posix_spawnp os.startfile
subprocess: os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe
subprocess: os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe
filesystem:read: os.listdir os.scandir os.walk os.fwalk os.stat os.lstat os.access os.readlink os.chdir os.fchdir
filesystem:read: os.statvfs os.getxattr os.listxattr os.path.exists os.path.lexists os.path.isfile os.path.isdir
filesystem:read: os.path.islink os.path.ismount os.path.getsize os.path.getmtime os.path.getatime os.path.getctime
filesystem:read: os.path.samefile os.sendfile os.path.isjunction
filesystem:read filesystem:write: os.open
filesystem:write: os.remove os.unlink os.rmdir os.removedirs os.mkdir os.makedirs os.rename os.renames os.replace
filesystem:write: os.chmod os.chown os.lchown os.fchmod os.fchown os.link os.symlink os.truncate os.utime os.mkfifo
filesystem:write: os.mknod os.setxattr os.removexattr os.chroot os.ftruncate
environment: os.getenv os.getenvb os.putenv os.unsetenv os.environ os.environb os.path.expandvars
crypto: hashlib hmac secrets crypt ssl
-: ssl.SSLError ssl.create_default_context
subprocess: subprocess pty.spawn asyncio.create_subprocess_exec asyncio.create_subprocess_shell
subprocess: asyncio.subprocess.create_subprocess_exec asyncio.subprocess.create_subprocess_shell commands popen2
subprocess: anyio.run_process anyio.open_process trio.run_process pexpect sh plumbum invoke.run fabric delegator envoy
-: subprocess.list2cmdline subprocess.CalledProcessError subprocess.TimeoutExpired subprocess.SubprocessError
-: subprocess.CompletedProcess
subprocess: multiprocessing.Process concurrent.futures.ProcessPoolExecutor multiprocessing.Pool
subprocess: asyncio.get_running_loop().subprocess_exec asyncio.get_running_loop().subprocess_shell
subprocess: asyncio.get_event_loop().subprocess_exec asyncio.get_event_loop().subprocess_shell
network: asyncio.get_running_loop().getaddrinfo asyncio.get_running_loop().create_connection
network: asyncio.get_running_loop().create_server asyncio.get_event_loop().getaddrinfo
network: asyncio.get_event_loop().create_connection asyncio.get_event_loop().create_server
network: asyncio.get_running_loop().sock_connect asyncio.get_running_loop().create_datagram_endpoint
network: asyncio.open_connection asyncio.start_server asyncio.open_unix_connection asyncio.start_unix_server
-: socket socket.gethostname socket.inet_aton socket.inet_pton
network: socket.socket socket.create_connection socket.create_server socket.getaddrinfo socket.gethostbyname
network: socket.gethostbyaddr socket.getfqdn socket.getnameinfo socket.fromfd socket.socketpair
network: socket.gethostbyname_ex
network: socket.socket() socket.create_connection()
network: urllib.request.urlopen urllib.request.urlretrieve urllib.request.build_opener() http.client.HTTPConnection()
network: http.client.HTTPSConnection() ftplib poplib imaplib smtplib telnetlib nntplib xmlrpc.client socketserver
network: http.server.HTTPServer http.server.ThreadingHTTPServer urllib.request.OpenerDirector() urllib2 wsgiref
network: urllib.request.URLopener() urllib.request.FancyURLopener() webbrowser logging.handlers.HTTPHandler
network: logging.handlers.SocketHandler logging.handlers.SysLogHandler logging.handlers.SMTPHandler
filesystem:write network: urllib.request.urlretrieve
-: urllib.request urllib.parse urllib.error http smtplib.SMTPException
subprocess: webbrowser.open webbrowser.open_new webbrowser.open_new_tab webbrowser.get()
code_evaluation: builtins.eval builtins.exec builtins.compile code codeop runpy pickle.load pickle.loads
code_evaluation: pickle.Unpickler marshal.load marshal.loads shelve dill cloudpickle.loads cloudpickle.load
code_evaluation: joblib.load
code_evaluation: types.FunctionType types.CodeType timeit.timeit timeit.Timer cProfile.run profile.run pdb bdb
code_evaluation: importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader imp.load_source
code_evaluation: yaml.unsafe_load yaml.unsafe_load_all yaml.UnsafeLoader yaml.Loader jsonpickle.decode
code_evaluation: asteval.Interpreter sympy.sympify sympy.parse_expr sympy.parsing.sympy_parser.parse_expr numexpr
code_evaluation: RestrictedPython simpleeval.eval py_mini_racer js2py lupa execjs pandas.eval IPython
native: ctypes cffi _ctypes pythonnet clr comtypes win32com win32api pywintypes numpy.ctypeslib ctypes.CDLL
filesystem:write: logging.FileHandler logging.handlers.RotatingFileHandler logging.handlers.TimedRotatingFileHandler
filesystem:read: glob.glob glob.iglob filecmp linecache fileinput zipimport pkgutil.get_data
filesystem:read: importlib.resources.read_text importlib.resources.read_binary importlib.resources.open_text
filesystem:read: importlib.resources.files().read_text importlib.resources.files().read_bytes
filesystem:read: importlib.resources.files().joinpath().read_text importlib.resources.files().joinpath().read_bytes
filesystem:read: zoneinfo.ZoneInfo zoneinfo.available_timezones netrc mailbox
filesystem:read: zipfile.is_zipfile tarfile.is_tarfile configparser.ConfigParser().read mimetypes.init
filesystem:read: shutil.disk_usage shutil.which
filesystem:read filesystem:write: shutil mmap.mmap dbm
-: shutil.get_terminal_size shutil.Error shutil.SameFileError
filesystem:write: shutil.rmtree shutil.chown
filesystem:write: tempfile zipfile.ZipFile().extract zipfile.ZipFile().extractall tarfile.open().extract
filesystem:write: tarfile.open().extractall shutil.unpack_archive tarfile.TarFile().extractall
-: tempfile.gettempdir
-: tempfile.NamedTemporaryFile().read
filesystem:read: sqlite3.connect
sql@0: sqlite3.connect().execute sqlite3.connect().executemany sqlite3.connect().executescript
sql@0: sqlite3.connect().cursor().execute sqlite3.connect().cursor().executemany
sql@0: sqlite3.connect().cursor().executescript
filesystem:write: sqlite3.connect().backup
native: sqlite3.connect().enable_load_extension sqlite3.connect().load_extension
-: sqlite3.connect().close sqlite3.connect().commit sqlite3.connect().cursor sqlite3.connect().rollback
-: sqlite3.connect() sqlite3.connect().cursor() sqlite3.Row
environment: getpass.getpass keyring
code_evaluation: trace.Trace() logging.config.dictConfig logging.config.fileConfig logging.config.listen doctest
code_evaluation: site.addsitedir site.addpackage site.main pkgutil.resolve_name pydoc.locate pydoc.safeimport
code_evaluation: pydoc.importfile unittest.mock._importer gc.get_objects gc.get_referrers gc.get_referents tkinter
code_evaluation: importlib.machinery importlib.util.module_from_spec importlib.reload zipimport.zipimporter() _imp
code_evaluation: _frozen_importlib _frozen_importlib_external _interpreters _xxsubinterpreters tracemalloc.Snapshot.load
code_evaluation: sys.meta_path sys.path_hooks copyreg copyreg.pickle copyreg.constructor
code_evaluation: pstats.Stats profile cProfile idlelib lib2to3 turtle
-: cProfile.Profile profile.Profile
subprocess: setuptools.setup distutils
subprocess: _posixsubprocess pydoc.pipepager pydoc.pager pydoc.tempfilepager imaplib.IMAP4_stream ensurepip venv
subprocess: os.kill os.killpg os.pidfd_open signal.pthread_kill signal.pidfd_send_signal antigravity platform.popen
subprocess: multiprocessing.context multiprocessing.get_context() multiprocessing.pool multiprocessing.process
network: _socket _socket.socket multiprocessing.connection.Client multiprocessing.connection.Listener
network: socketserver.TCPServer socketserver.UDPServer socketserver.ThreadingTCPServer socketserver.ThreadingUDPServer
network: multiprocessing.connection multiprocessing.managers multiprocessing.Manager syslog smtpd asyncore
network: asynchat urllib.robotparser.RobotFileParser().read
network filesystem:read: xml.sax.parse xml.sax.make_parser().parse
mode@1: io.FileIO _io.FileIO _pyio.FileIO _pyio.open bz2.BZ2File lzma.LZMAFile
filesystem:read: xml.etree.ElementTree.parse xml.etree.ElementTree.iterparse xml.etree.ElementTree.ElementTree().parse
filesystem:read: xml.dom.minidom.parse xml.dom.pulldom.parse tokenize.open readline.read_history_file
filesystem:read: readline.read_init_file pwd grp spwd mailcap modulefinder
filesystem:write: xml.etree.ElementTree.ElementTree().write readline.write_history_file readline.append_history_file
filesystem:write: multiprocessing.shared_memory _posixshmem cProfile.Profile().dump_stats tracemalloc.Snapshot().dump
filesystem:read filesystem:write: compileall py_compile zipapp os.copy_file_range os.splice
filesystem:read filesystem:write: http.cookiejar.FileCookieJar() http.cookiejar.MozillaCookieJar()
filesystem:read filesystem:write: http.cookiejar.LWPCookieJar()
native: _winapi msvcrt winreg importlib.machinery.ExtensionFileLoader
"""

PACKAGES: Final = """
network: requests httpx httpx2 aiohttp urllib3 curl_cffi httplib2 pycurl treq websockets websocket websocket_client
network: socketio grpc zmq pika kombu celery redis aioredis pymongo motor psycopg psycopg2 asyncpg pymysql MySQLdb
network: mysql aiomysql oracledb cx_Oracle pyodbc pymssql cassandra elasticsearch opensearchpy neo4j influxdb_client
network: influxdb clickhouse_driver clickhouse_connect snowflake databricks trino prestodb pyhive hdbcli ldap3 kafka
network: confluent_kafka aiokafka nats paho boto3 botocore aioboto3 aiobotocore azure msal kubernetes docker
network: googleapiclient google_auth_oauthlib google.cloud google.auth google.oauth2 google.genai google.generativeai
network: openai anthropic cohere mistralai groq ollama replicate litellm huggingface_hub tavily exa_py firecrawl
network: serpapi
network: slack_sdk slack discord telegram twilio sendgrid stripe tweepy praw github gitlab jira atlassian
network: notion_client
network: wikipedia wikipediaapi arxiv yfinance feedparser newspaper duckduckgo_search ddgs googlesearch pytube yt_dlp
network: youtube_transcript_api simple_salesforce shopify plaid dns whois scapy nmap paramiko asyncssh ftputil
network: smbclient
network: pysftp netmiko ncclient requests_html cloudscraper mechanize scrapy trafilatura.fetch_url kiteconnect
network: pinecone weaviate qdrant_client pymilvus meilisearch typesense supabase firebase_admin algoliasearch
network: sentry_sdk posthog segment mixpanel datadog newrelic prometheus_client.push_to_gateway langfuse
network: aiosmtplib aioimaplib exchangelib imap_tools caldav nio zulip mastodon atproto linkedin_api instagrapi
network: pandas_datareader alpaca alpha_vantage ccxt web3 solana polygon fredapi wbgapi sodapy geopy.geocoders
network: uvicorn hypercorn gunicorn waitress nltk.download sentence_transformers.SentenceTransformer
network: sqlalchemy.create_engine() sqlalchemy.ext.asyncio.create_async_engine() sqlalchemy.orm.Session()
network: sqlalchemy.orm.sessionmaker()() sqlalchemy.inspect() sqlmodel.create_engine() sqlmodel.Session() databases
network: sqlalchemy.engine.Engine() sqlalchemy.Engine() sqlalchemy.engine.Connection() sqlalchemy.Connection()
network: sqlalchemy.ext.asyncio.AsyncSession() sqlalchemy.ext.asyncio.async_sessionmaker()() peewee tortoise
network: pymemcache
network: sqlalchemy.inspect
-: sqlalchemy sqlalchemy.text sqlalchemy.create_engine sqlalchemy.create_engine().url
-: httpx.URL httpx.Timeout httpx.Limits httpx.Headers httpx.QueryParams httpx.Request httpx.BasicAuth httpx.codes
-: httpx2.URL httpx2.Timeout httpx2.Limits httpx2.Headers httpx2.Request
-: requests.exceptions requests.adapters requests.auth requests.utils requests.codes requests.compat
-: requests.Session().mount requests.Session().headers requests.Session().close
-: aiohttp.ClientTimeout aiohttp.FormData aiohttp.BasicAuth aiohttp.TCPConnector aiohttp.hdrs urllib3.util
-: urllib3.exceptions urllib3.disable_warnings github.Auth botocore.config botocore.exceptions google.auth.exceptions
-: openai.types anthropic.types docker.types docker.errors redis.exceptions grpc.StatusCode slack_sdk.errors
-: google.genai.types feedparser.parse().entries feedparser.parse().feed
subprocess network: playwright selenium pyppeteer undetected_chromedriver DrissionPage crawl4ai browser_use
subprocess: ffmpeg pydub.AudioSegment pdf2image pytesseract pypandoc pyperclip pyautogui pynput psutil.Popen
subprocess: fabric.Connection() invoke nbconvert jupyter_client
subprocess filesystem:read filesystem:write: readabilipy.simple_json_from_html_string readabilipy.simple_json
subprocess filesystem:read filesystem:write: git.Git git.cmd git.Git() git.Repo().git git.Repo().submodules
filesystem:read: git.Repo git.Repo() git.Repo().close
-: git git.exc git.util git.Repo().close git.Repo().working_dir git.Repo().git_dir git.Repo().working_tree_dir
subprocess filesystem:read: git.Repo().git.status git.Repo().git.diff git.Repo().git.log git.Repo().git.show
subprocess filesystem:read: git.Repo().git.ls_files git.Repo().git.ls_tree git.Repo().git.rev_parse
subprocess filesystem:read: git.Repo().git.rev_list git.Repo().git.blame git.Repo().git.cat_file git.Repo().git.grep
subprocess filesystem:read: git.Repo().git.describe git.Repo().git.shortlog git.Repo().git.branch
subprocess filesystem:read: git.Repo().git.for_each_ref git.Repo().git.merge_base git.Repo().git.name_rev
subprocess filesystem:read: git.Repo().git.diff_tree git.Repo().git.version git.Repo().git.symbolic_ref
subprocess filesystem:read: git.Repo().rev_parse git.Repo().commit git.Repo().tree git.Repo().iter_commits
subprocess filesystem:read: git.Repo().iter_trees git.Repo().blame git.Repo().is_dirty git.Repo().untracked_files
subprocess filesystem:read: git.Repo().merge_base git.Repo().ignored git.Repo().is_ancestor git.Repo().index.diff
subprocess filesystem:read: git.Repo().head.commit git.Repo().archive git.Repo().commit().diff
subprocess filesystem:read filesystem:write: git.Repo().index git.Repo().create_head git.Repo().create_tag
subprocess filesystem:read filesystem:write: git.Repo().delete_head git.Repo().delete_tag git.Repo().head.reset
subprocess filesystem:read filesystem:write: git.Repo().create_submodule git.Repo().heads.checkout
subprocess filesystem:read filesystem:write: git.Repo().head.set_commit
subprocess filesystem:write: git.Repo.init
subprocess filesystem:read filesystem:write network: git.Repo.clone_from git.Repo().clone git.Repo().remote()
subprocess filesystem:read filesystem:write network: git.Repo().remotes git.Repo().git.push git.Repo().git.pull
subprocess filesystem:read filesystem:write network: git.Repo().git.fetch git.Repo().git.clone
subprocess filesystem:read filesystem:write network: git.Repo().git.submodule
subprocess network: git.cmd.Git().ls_remote git.Git().ls_remote
filesystem:read environment: dotenv.load_dotenv decouple environ.Env().read_env
filesystem:read: dotenv dotenv.dotenv_values
environment: pydantic_settings.BaseSettings environs
crypto: cryptography Crypto Cryptodome nacl jwt jose authlib.jose bcrypt argon2 passlib itsdangerous OpenSSL pgpy
crypto: gnupg
crypto: msoffcrypto ecdsa rsa pyotp fernet blake3 eth_account.Account bitcoin coincurve
filesystem:read: openpyxl.load_workbook xlrd pyxlsb pypdf.PdfReader PyPDF2.PdfReader pdfplumber.open fitz.open
filesystem:read: pymupdf.open PIL.Image.open cv2.imread docx.Document pptx.Presentation mammoth.convert_to_html
filesystem:read: numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile textract tabula camelot
filesystem:read: ebooklib.epub.read_epub
filesystem:read: pandas.read_csv pandas.read_excel pandas.read_json pandas.read_parquet pandas.read_table
filesystem:read: pandas.read_feather
filesystem:read: pandas.ExcelFile polars.read_csv polars.read_parquet polars.read_json polars.scan_csv
filesystem:read: pyarrow.parquet.read_table
filesystem:read: tzlocal magic.from_file pymupdf4llm.to_markdown markitdown.MarkItDown() soundfile.read
filesystem:read network: pandas.read_html pandas.read_sql pandas.read_sql_query
code_evaluation: pandas.read_pickle
filesystem:read filesystem:write: duckdb tinydb diskcache chromadb lancedb faiss.read_index aiosqlite
filesystem:write: openpyxl.load_workbook().save openpyxl.Workbook().save openpyxl.workbook.Workbook().save
filesystem:write: openpyxl.workbook.workbook.Workbook().save docx.Document().save pptx.Presentation().save
filesystem:write: xlsxwriter.Workbook fpdf.FPDF().output reportlab.pdfgen.canvas.Canvas().save PIL.Image.open().save
filesystem:write: PIL.Image.new().save PIL.Image.fromarray().save matplotlib.pyplot.savefig
filesystem:write: matplotlib.pyplot.subplots().savefig matplotlib.pyplot.figure().savefig
filesystem:write: pandas.ExcelWriter cv2.imwrite numpy.save numpy.savez numpy.savetxt send2trash docx2pdf.convert
filesystem:write: pypdf.PdfWriter().write soundfile.write imageio.imwrite gtts.gTTS().save
filesystem:write: joblib.dump pyttsx3
filesystem:write subprocess: docx2pdf
-: openpyxl xlsxwriter docx pptx pandas polars numpy matplotlib PIL cv2 fitz pymupdf pypdf PyPDF2 pdfplumber pyarrow
-: openpyxl.load_workbook() docx.Document() pptx.Presentation() pypdf.PdfReader() PIL.Image.open() pdfplumber.open()
-: pydantic pydantic_core typing_extensions mcp mcp_types fastmcp anyio trio sniffio bs4 markdownify html2text lxml
-: protego
-: click typer rich loguru structlog colorama tqdm tabulate termcolor humanize wcwidth prompt_toolkit
-: dateutil pytz tzdata pendulum arrow babel croniter holidays freezegun whenever
-: jinja2 markdown mistune yaml toml tomli tomli_w tomlkit ruamel orjson ujson simplejson msgpack jsonschema jsonpatch
-: jsonpointer jsonpath_ng jmespath xmltodict defusedxml html5lib cssselect soupsieve parsel w3lib idna
-: charset_normalizer
-: attr attrs marshmallow cattrs dacite packaging importlib_metadata importlib_resources setuptools pkg_resources
-: tenacity backoff cachetools async_lru aiocache ratelimit aiolimiter more_itertools toolz boltons sortedcontainers
-: regex rapidfuzz fuzzywuzzy Levenshtein thefuzz nltk spacy tiktoken tokenizers scipy sklearn networkx statsmodels
-: starlette fastapi sse_starlette cyclopts docstring_parser griffe exceptiongroup readability trafilatura textblob
-: latex2mathml sqlparse sqlglot pint sympy mpmath shapely geopandas faker validators email_validator phonenumbers
-: multidict yarl frozenlist attrs_strict pathspec gitdb chardet simpleeval thread_local pydantic_ai langchain_core
-: deprecated wrapt decorator opentelemetry unidiff diff_match_patch pygments tree_sitter libcst parso
-: googleapiclient.errors google.oauth2.credentials.Credentials feedgen icalendar vobject qrcode barcode
filesystem:read: environs.Env().read_env watchfiles watchdog pymediainfo
filesystem:write: filelock qrcode.make().save loguru.logger.add
"""

METHODS: Final = """
filesystem:read: read_text read_bytes iterdir rglob
filesystem:write: write_text write_bytes to_csv to_excel to_parquet to_pickle to_feather
"""
"""Methods that are recognised by name if the object is unknown."""

ALIASES: Final = """
pathlib.Path(): pathlib.Path().parent pathlib.Path().joinpath() pathlib.Path().resolve() pathlib.Path().absolute()
pathlib.Path(): pathlib.Path().expanduser() pathlib.Path().with_suffix() pathlib.Path().with_name()
pathlib.Path(): pathlib.Path().with_stem() pathlib.Path().iterdir() pathlib.Path().glob() pathlib.Path().rglob()
pathlib.Path(): pathlib.Path().relative_to() pathlib.Path().parents pathlib.Path.home() pathlib.Path.cwd()
pathlib.Path(): pathlib.Path().rename() pathlib.Path().replace() pathlib.Path().readlink() pathlib.PosixPath()
pathlib.Path(): pathlib.WindowsPath()
sqlite3.connect(): sqlite3.Connection() sqlite3.dbapi2.connect()
sqlite3.connect().cursor(): sqlite3.Cursor() sqlite3.connect().execute()
git.Repo(): git.Repo.init() git.Repo.clone_from() git.repo.Repo() git.repo.base.Repo() git.Repo().clone()
git.Repo().commit(): git.Commit() git.objects.Commit() git.Repo().rev_parse() git.Repo().iter_commits()
git.Repo().commit(): git.Repo().head.commit
git.Repo().commit(): git.Repo().commit().parents
git.Git(): git.cmd.Git()
requests.Session(): requests.session() requests.sessions.Session()
git.Repo: git.repo.Repo git.repo.base.Repo
asyncio.get_running_loop(): asyncio.get_event_loop() asyncio.new_event_loop() asyncio.AbstractEventLoop()
anyio.Path(): anyio.Path().parent anyio.Path().joinpath() aiopath.AsyncPath() anyio.Path().resolve()
os: posix nt
os.path: posixpath ntpath genericpath
builtins.open: _io.open
builtins: builtins.__builtins__ __builtin__
sqlite3: _sqlite3
socket.socket(): _socket.socket()
pickle: _pickle cPickle
"""
"""Each row is a name and its aliases: results of calls, and other names of a module."""

SENSITIVE_READS: Final = (
    "os.environ os.environb git.Repo().active_branch git.Repo().heads git.Repo().branches git.Repo().references "
    "git.Repo().tags git.Repo().head.is_detached git.Repo().untracked_files git.Repo().head.commit git.Repo().refs"
)
"""Names that need their entitlement when they are read, without a call."""

NEVER_CALLS: Final = (
    "builtins.isinstance builtins.issubclass builtins.hasattr builtins.id builtins.type builtins.callable "
    "builtins.repr builtins.str builtins.print builtins.len builtins.dir builtins.hash builtins.vars builtins.bool "
    "inspect typing contextlib.suppress unittest.mock asyncio.iscoroutinefunction asyncio.iscoroutine "
    "signal.getsignal typing.cast pydantic.TypeAdapter dataclasses pydantic.Field"
)
"""Functions that do not call the functions or classes passed to them."""

PASSIVE_BASES: Final = (
    "object type dict list set frozenset tuple str bytes int float complex ABC Protocol Generic NamedTuple TypedDict "
    "Enum IntEnum StrEnum Flag IntFlag ReprEnum BaseModel BaseSettings RootModel SQLModel DeclarativeBase Base Struct "
    "Model Schema UserDict UserList UserString OrderedDict defaultdict Counter"
)
"""Base classes that call only the special methods of their subclasses."""
