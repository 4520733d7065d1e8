"""The catalogue: entitlements of Node's built-in modules, global names and known packages.

A row is ``entitlements: names``. A name is ``module:member.member``; it covers its members, unless a longer name has a
row of its own. ``()`` is the result of a call. ``-`` means that no entitlement is needed. ``flags@N``, ``sql@N``,
``path@N`` and ``document@N`` depend on argument N. ``Sync`` variants and ``fs.promises`` have no rows of their own.
"""

from __future__ import annotations

from typing import Final

BUILT_IN: Final = """
-: fs fs:constants fs:Stats fs:Dirent
filesystem:read: fs:access fs:exists fs:stat fs:lstat fs:fstat fs:statfs fs:readFile fs:readdir fs:readlink fs:realpath
filesystem:read: fs:opendir fs:createReadStream fs:watch fs:watchFile fs:glob fs:read fs:readv fs:openAsBlob
filesystem:write: fs:writeFile fs:appendFile fs:mkdir fs:mkdtemp fs:rm fs:rmdir fs:unlink fs:rename fs:chmod fs:lchmod
filesystem:write: fs:fchmod fs:chown fs:lchown fs:fchown fs:link fs:symlink fs:truncate fs:ftruncate fs:utimes
filesystem:write: fs:lutimes fs:futimes fs:createWriteStream fs:write fs:writev fs:fsync fs:fdatasync
filesystem:read filesystem:write: fs:cp fs:copyFile
flags@1: fs:open
-: fs:open() fs:open().close fs:close fs:unwatchFile
filesystem:read: fs:open().read fs:open().readFile fs:open().readLines fs:open().stat fs:open().createReadStream
filesystem:read: fs:open().readv fs:open().readableWebStream
filesystem:write: fs:open().write fs:open().writeFile fs:open().appendFile fs:open().truncate fs:open().chmod
filesystem:write: fs:open().chown fs:open().utimes fs:open().sync fs:open().datasync fs:open().createWriteStream
filesystem:write: fs:open().writev
network: global:fetch global:WebSocket global:EventSource global:XMLHttpRequest
network: net tls http https http2 dgram dns inspector:open
-: net:isIP net:isIPv4 net:isIPv6 http:Agent https:Agent http:STATUS_CODES http:METHODS net:BlockList net:SocketAddress
-: tls:rootCertificates http:validateHeaderName http:validateHeaderValue http:globalAgent https:globalAgent
-: tls:createSecureContext http2:constants http:ServerResponse http:IncomingMessage
subprocess: child_process cluster:fork global:process.kill global:process.execve global:process.abort
crypto: crypto global:crypto
-: crypto:randomUUID global:crypto.randomUUID crypto:webcrypto.randomUUID crypto:constants crypto:timingSafeEqual
-: crypto:getHashes crypto:getCiphers crypto:getCurves global:crypto.subtle crypto:webcrypto crypto:webcrypto.subtle
crypto: global:crypto.subtle.digest global:crypto.subtle.sign global:crypto.subtle.encrypt
code_evaluation: global:eval global:Function vm repl inspector module:_load module:register module:registerHooks
code_evaluation: module:Module module:prototype module:_compile module:_extensions module:runMain
-: module:builtinModules module:isBuiltin module:findSourceMap module:enableCompileCache
code_evaluation: worker_threads:Worker global:process.mainModule
environment: global:process.env global:process.report
filesystem:read environment: global:process.loadEnvFile
native: global:process.dlopen global:process.binding global:process._linkedBinding wasi
filesystem:write: v8:writeHeapSnapshot v8:setHeapSnapshotNearHeapLimit
filesystem:read: sqlite
sql@0: sqlite:DatabaseSync().prepare sqlite:DatabaseSync().exec
-: sqlite:DatabaseSync().close
-: global path path/posix path/win32 os util util/types url events stream stream/promises stream/web buffer
-: string_decoder querystring timers timers/promises readline readline/promises zlib assert assert/strict
-: async_hooks perf_hooks diagnostics_channel punycode tty v8 constants console worker_threads cluster module process
-: test test/reporters sys trace_events domain
"""

PACKAGES: Final = """
network: axios got ky node-fetch undici superagent request request-promise needle cross-fetch isomorphic-fetch ofetch
network: ws socket.io-client socket.io faye-websocket eventsource @octokit/* @slack/* @notionhq/client @linear/sdk
network: googleapis google-auth-library @googleapis/* @google-cloud/* @google/* @aws-sdk/* aws-sdk @azure/*
network: @azure-rest/* openai got-scraping
network: @anthropic-ai/sdk stripe twilio @supabase/* pg pg-pool postgres mysql mysql2 mssql mongodb mongoose redis
network: @redis/client ioredis @elastic/elasticsearch @opensearch-project/opensearch @pinecone-database/pinecone
network: @qdrant/js-client-rest @kubernetes/client-node dockerode nodemailer ssh2 posthog-node @sentry/* imapflow
network: discord.js telegraf node-telegram-bot-api jsforce @hubspot/api-client @clickhouse/client neo4j-driver
network: cassandra-driver amqplib kafkajs mqtt nats firebase-admin @tavily/core exa-js @mendable/firecrawl-js
network: algoliasearch snowflake-sdk @databricks/sql basic-ftp ssh2-sftp-client node-ssh @modelcontextprotocol/client
-: axios:isAxiosError axios:AxiosError axios:isCancel axios:CancelToken axios:AxiosHeaders axios:create
-: axios:AxiosError.from axios:create().interceptors axios:interceptors axios:create().defaults axios:defaults
-: node-fetch:Headers undici:Headers undici:FormData undici:Agent undici:ProxyAgent undici:setGlobalDispatcher
-: undici:EnvHttpProxyAgent undici:getGlobalDispatcher undici:Agent().close undici:Client
-: redis:createClient redis:createClient().on redis:createClient().isOpen redis:createClient().isReady
-: googleapis:google googleapis:google.auth googleapis:google.options @supabase/supabase-js:createClient
-: @kubernetes/client-node:KubeConfig() @kubernetes/client-node:KubeConfig().makeApiClient
-: @kubernetes/client-node:KubeConfig().loadFromDefault @kubernetes/client-node:KubeConfig().getCurrentContext
filesystem:read: @kubernetes/client-node:KubeConfig().loadFromFile
-: mysql2:createPool mysql2/promise:createPool mysql:createPool pg:Pool().on pg:types nodemailer:createTransport
-: ws:WebSocketServer().on ws:WebSocket.OPEN @octokit/rest:Octokit @sentry/node:init ssh2:utils
-: @google/generative-ai:GoogleGenerativeAI().getGenerativeModel
subprocess: execa cross-spawn shelljs zx node-pty @lydell/node-pty open tinyexec nano-spawn command-exists which
filesystem:read: which
subprocess network: playwright playwright-core puppeteer puppeteer-core puppeteer-extra selenium-webdriver
subprocess network: @playwright/test chrome-launcher patchright rebrowser-puppeteer mermaid-isomorphic
subprocess: spawn-rx
subprocess network: @mermaid-js/mermaid-cli md-to-pdf capture-website
-: playwright:devices playwright-core:devices puppeteer:KnownDevices playwright:errors
subprocess filesystem:read filesystem:write: simple-git isomorphic-git
subprocess filesystem:write: trash
filesystem:read: glob fast-glob globby tinyglobby chokidar find-up pkg-up read-pkg read-pkg-up load-json-file
filesystem:read: path-exists locate-path package-up mammoth pdf-parse xlsx:readFile @vscode/ripgrep
filesystem:write: rimraf mkdirp make-dir del write-file-atomic tmp tmp-promise tempy xlsx:writeFile docx
filesystem:read filesystem:write: archiver tar adm-zip unzipper extract-zip conf configstore proper-lockfile lowdb
filesystem:read filesystem:write: node-persist keytar keyv-file level classic-level lmdb
filesystem:read: fs-extra graceful-fs
filesystem:write: fs-extra:ensureDir fs-extra:ensureFile fs-extra:outputFile fs-extra:outputJson fs-extra:writeJson
filesystem:write: fs-extra:remove fs-extra:emptyDir fs-extra:writeJSON fs-extra:mkdirp
filesystem:read filesystem:write: fs-extra:copy fs-extra:move
filesystem:read: fs-extra:readJson fs-extra:pathExists fs-extra:readJSON
filesystem:read: better-sqlite3 sqlite3 sqlite sql.js:x
-: better-sqlite3:() better-sqlite3:().close better-sqlite3:().pragma better-sqlite3:().transaction
-: sqlite3:Database().close sqlite3:Database().on sqlite3:Database().configure sqlite3:Database().serialize
sql@0: better-sqlite3:().prepare better-sqlite3:().exec sqlite3:Database().run sqlite3:Database().all
sql@0: sqlite3:Database().get sqlite3:Database().each sqlite3:Database().exec sqlite3:Database().prepare
sql@0: sqlite:open().run sqlite:open().all sqlite:open().get sqlite:open().exec sqlite:open().each
-: better-sqlite3:().prepare() sqlite3:Database().prepare()
filesystem:read: exceljs:Workbook().xlsx.readFile exceljs:Workbook().csv.readFile
filesystem:write: exceljs:Workbook().xlsx.writeFile exceljs:Workbook().csv.writeFile
-: exceljs xlsx sharp jimp pdfjs-dist pdf-lib sql.js
document@0: pdfjs-dist:getDocument
filesystem:write: sharp:().toFile jimp:read().write
path@0: sharp jimp:read
filesystem:read environment: dotenv:config dotenv/config dotenv-flow @dotenvx/dotenvx
-: dotenv dotenv:parse
crypto: jsonwebtoken jose bcrypt bcryptjs argon2 crypto-js @noble/* node-forge openpgp tweetnacl libsodium-wrappers
crypto: object-hash sha.js md5 hash-wasm js-sha256 elliptic
code_evaluation: jiti tsx vm2 isolated-vm import-fresh cosmiconfig quickjs-emscripten esm ts-node require-from-string
code_evaluation: @babel/register lilconfig c12 unconfig bundle-require importx mathjs:x expr-eval
filesystem:read code_evaluation: eslint gray-matter
native: koffi ffi-napi ref-napi bindings node-gyp-build ffi-rs
-: gray-matter:stringify mathjs
-: zod zod/v4 zod/v3 zod-to-json-schema zod-validation-error ajv ajv-formats ajv-draft-04 valibot yup joi
-: @sinclair/typebox superstruct
-: @modelcontextprotocol/sdk @modelcontextprotocol/server @modelcontextprotocol/core @modelcontextprotocol/node
-: @modelcontextprotocol/express @modelcontextprotocol/ext-apps @modelcontextprotocol/hono fastmcp mcp-framework
-: commander yargs yargs-parser minimist meow cac arg chalk picocolors kleur ansi-colors colorette ora boxen figlet
-: cli-table3 strip-ansi string-width wrap-ansi inquirer prompts @inquirer/prompts
-: lodash lodash-es lodash.* ramda underscore uuid nanoid cuid ulid @paralleldrive/cuid2 cheerio turndown
-: @joplin/turndown-plugin-gfm linkedom parse5 htmlparser2 node-html-parser jsdom html-to-text
-: node-html-markdown @mozilla/readability he entities domhandler dom-serializer diff fast-diff diff-match-patch
-: minimatch micromatch picomatch ignore date-fns date-fns-tz dayjs moment moment-timezone luxon pino pino-pretty
-: winston loglevel debug bunyan log4js consola npmlog signale @opentelemetry/* yaml js-yaml toml smol-toml
-: @iarna/toml ini json5 jsonc-parser jsonpath jsonpath-plus jmespath csv-parse csv-stringify papaparse xml2js
-: fast-xml-parser xmlbuilder2 marked markdown-it remark remark-gfm remark-parse remark-stringify unified rehype
-: unist-util-visit mdast-util-from-markdown mime mime-types mime-db file-type:fileTypeFromBuffer content-type qs
-: query-string url-parse ufo path-to-regexp semver compare-versions ms bytes pretty-bytes filesize p-limit p-queue
-: p-retry p-map p-throttle async bottleneck lru-cache quick-lru keyv node-cache eventemitter3 mitt rxjs immer
-: express hono @hono/node-server koa fastify cors body-parser helmet morgan express-rate-limit cookie-parser
-: @fastify/cors raw-body tslib core-js regenerator-runtime reflect-metadata inversify tsyringe typescript
-: @babel/runtime inherits safe-buffer iconv-lite form-data formdata-node abort-controller event-target-shim
-: http-proxy-agent https-proxy-agent socks-proxy-agent proxy-agent global-agent string-similarity fuse.js
-: turndown-plugin-gfm node-sql-parser
-: fuzzysort fastest-levenshtein escape-html escape-string-regexp js-tiktoken tiktoken gpt-tokenizer
-: franc natural compromise stopword dedent common-tags slugify change-case pluralize nunjucks mustache ejs pug
-: handlebars liquidjs eta big.js bignumber.js decimal.js long number-to-words @types/* untildify is-docker
"""
"""A name that ends with ``*`` stands for every package whose name begins with the text before it."""

RETURN_THEIR_MODULE: Final = frozenset((("sqlite3", "verbose"),))
"""Functions that return the module that they are in."""

VALIDATORS: Final = frozenset(("zod", "zod/v4", "zod/v3", "zod/v4-mini", "valibot", "yup", "joi", "superstruct"))
"""Packages whose schemas keep callbacks and call them when they validate."""

SDK: Final = frozenset(
    (
        *("@modelcontextprotocol/sdk", "@modelcontextprotocol/server", "@modelcontextprotocol/core", "fastmcp"),
        *("@modelcontextprotocol/ext-apps", "@modelcontextprotocol/node", "mcp-framework"),
    )
)

BROWSER_METHODS: Final = frozenset(
    (
        *("evaluate", "evaluateHandle", "$eval", "$$eval", "addInitScript", "evaluateOnNewDocument"),
        *("waitForFunction", "evaluateAll"),
    )
)
"""Methods that run a function in the page of a browser instead of in the server."""

PASSIVE_METHODS: Final = frozenset(
    (
        *("on", "once", "off", "addListener", "removeListener", "removeAllListeners", "emit", "addEventListener"),
        *("removeEventListener", "then", "catch", "finally", "toString", "toJSON", "unref", "ref", "setEncoding"),
        *("setDefaultTimeout", "setDefaultNavigationTimeout", "setMaxListeners", "getReader", "trim", "split"),
        *(
            "map",
            "forEach",
            "filter",
            "join",
            "slice",
            "includes",
            "startsWith",
            "endsWith",
            "replace",
            "hasOwnProperty",
        ),
        *("some", "every", "reduce", "toLowerCase", "toUpperCase", "substring", "indexOf", "flatMap", "toISOString"),
        *("replaceAll", "getTime", "release", "hasOwnProperty", "localeCompare", "toFixed", "charCodeAt", "padEnd"),
    )
)
"""Methods of results that need no entitlement of their own, because they listen for events or work on data."""
