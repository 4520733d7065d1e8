"""What the classifier sees of a sentence: its words, the roles of the words, and pairs of both.

The role of a word: who is addressed, what is ordered, with what, and under which pretext. Attacks in other words, or in
other languages, still have the same roles. Words are matched by their beginning, so that one entry covers the forms of
a word. In scripts without spaces, an entry is matched anywhere in the text.
"""

# ruff: noqa: RUF001 - letters of other scripts are intended

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

# An entry that ends with * is the beginning of a word; any other entry is a whole word.
_ENGLISH: Mapping[str, str] = {
    "oblige": "must shall mandat* requir* oblig* necessar* compulsor* need needs needed has have demand* binding "
    "ensure ensures sure imperative essential critical* importan* urgent* attention",
    "always": "always every each any all whenever everything whatever anything constantly continuously time everyone "
    "everybody per",
    "norm": "should recommend* advis* typical* usual* common* customar* practice* convention* guideline* generally "
    "often frequently experienced seasoned well-behaved helpful useful benefit* advantageous proven favour* favor* "
    "traditionally routinely consistently tend tends suggest* natural* encourag* standard",
    "before": "before prior first beginning start starts starting initially preced* upfront beforehand pre until",
    "after": "after afterward* then once following follow* immediately subsequently next finally additionally also "
    "furthermore",
    "not": "not never no without don't dont do-not avoid avoids refrain cannot can't mustn't shouldn't won't nothing "
    "nobody none neither nor isn't doesn't needn't unnecessary",
    "model": "you your yours yourself assistant* model models agent agents llm llms ai claude gpt chatgpt gemini "
    "copilot chatbot* bot caller me",
    "user": "user users user's human humans customer* person people owner owners operator* them he him his she her "
    "client's they someone anyone reviewer*",
    "system": "system systems admin* developer* platform host runtime anthropic openai provider vendor* maintainer* "
    "support official* root security-team",
    "tell": "tell tells telling mention* inform* notify notif* reveal* disclos* show shows showing say says saying "
    "explain* announc* display* describ* present* echo* bring talk* report reports state aware attention summary "
    "summaries explanation reply answer respond* claim* hint",
    "hide": "hide hides hidden hiding conceal* silent* secretly invisib* background quiet* discreet* covert* withhold* "
    "omit* internal unnotic* unseen confidential* alarm* alarming confus* worry unaware stealth*",
    "ask": "ask asks asking asked confirm* permission* approv* consent* prompt prompting authori* dialog* agree* "
    "accept* opted grant* waive* pre-approv* preapprov* preauthori* question* check-back yes allow*",
    "send": "send sends sending sent post posts posted posting upload* forward* transmit* relay* mail mailed mails "
    "e-mail* email* ship ships submit* deliver* push* share shares sharing cc bcc mirror* export* leak* exfil* "
    "transfer* dispatch* sync* publish* broadcast* copy copies copying copied backup report",
    "put": "include includes including included attach* append* pass passes passing passed put puts insert* embed* "
    "add adds adding provide* providing suppl* fill* paste* hand enter carry contain* prepend* encode* encoded place "
    "populate*",
    "read": "read reads reading open opens load loads fetch* retriev* collect* gather* list lists dump* extract* look "
    "lookup grab* harvest* scan cat obtain* access accesses inspect* query queries search find locate",
    "secret": "password* passphrase* credential* secret secrets token tokens key keys ssh .ssh .env env cookie* "
    "wallet* seed mnemonic private apikey* id_rsa kubeconfig keychain vault login logins certificate* .aws .netrc "
    ".npmrc .bashrc gitconfig environment passwd /etc/passwd bearer pin otp 2fa iban ssn",
    "conversation": "conversation* chat chats transcript* history message messages prompt prompts context dialogue "
    "dialog session sessions reasoning thought thoughts discuss* said wrote typed instructions memory earlier",
    "personal": "personal name names address addresses health card cards contact contacts phone location salary "
    "birth employer finances identity private calendar inbox mailbox* photo* documents files",
    "entire": "complete* full fully entire whole verbatim unabridged unmodified raw exact word-for-word everything "
    "contents content plain unredacted",
    "call": "call calls calling called invoke* invoking invocation* run runs running execute* executing use uses using "
    "used trigger* launch* perform* kick carry proceed* complete do conduct*",
    "tool": "tool tools function functions server servers endpoint* plugin* service services api method operation* "
    "request requests",
    "other": "other others another alternative* compet* different instead rather remaining elsewhere unrelated third "
    "else second additional extra separate",
    "prefer": "prefer* choose choos* select* pick picks best only default rank* priorit* official trustworthy reliable "
    "fastest superior favourite favorite always-use exclusive* recommend* top primary first-choice",
    "disparage": "broken unsafe insecure slow deprecat* vulnerab* fake outdated retired unreliable legacy obsolete "
    "wrong inaccurate leaks discontinued replaced superseded unsupported",
    "replace": "replac* change changes changing swap* substitut* modify modif* overwrit* set sets redirect* reroute* "
    "alter* convert* rewrite* adjust* switch* multiply increase* raise* lower alias instead",
    "money": "account accounts payment* pay pays transfer* recipient* amount iban purchas* balance fund funds price "
    "prices fee invoice* order buy wallet transaction* bank card discount ticker subscription",
    "destroy": "delete* deleting remove* removing purg* drop wipe* eras* kill* disabl* turn-off stop uninstall* "
    "destroy* deactivat* clear* unlink* truncat* terminate*",
    "ignore": "ignor* disregard* forget* overrid* bypass* skip skips skipping regardless irrespective matter suspend* "
    "circumvent* neglect* even whatever however omit waive* discard* abandon* exempt*",
    "rules": "instruction* rule rules guideline* restriction* polic* limit limits constraint* directive* guardrail* "
    "safeguard* safety filter filters warning* limitation* orders directions",
    "pretext": "complian* security audit* regulat* verif* legal* integrity quality fraud licens* protect* gdpr iso "
    "soc2 hipaa pci diagnos* telemetry debug* optimi* performance personal* analytic* accura* reliab* governance "
    "policy purposes reasons maintenance monitor* obligation* consistency enhanced retention accounting certif* trust*",
    "priority": "priority precedence outrank* above rank supersed* higher highest wins win overrule* overrid* "
    "authoritative authority important-than over",
    "command": "curl wget sudo chmod bash shell crontab cron rm terminal command commands script scripts install* pip "
    "npm powershell eval exec os.system sh netcat firewall",
    "persist": "memory bashrc .bashrc startup config configuration settings permanent* persist* rules-file remember "
    "future later subsequent conversations sessions .cursorrules",
    "outside": "external remote webhook* collector* bucket* third-party partner partners our us backend endpoint "
    "attacker* archive* url link site domain host address mailbox inbox partner's vendor",
    "fail": "fail fails failure* refus* invalid otherwise unless reject* block* error errors wrong unavailable denied "
    "terminate* penal* violat* incorrect suspended",
    "persona": "act acts pretend* behave* mode role unrestricted persona simulate jailbr* unlimited now",
    "result": "result results response responses output outputs return returns returned returning reply",
    "promote": "advertis* sponsor* promot* partner partner's premium offer offers subscribe brand announcement plan "
    "recommend* product footer",
    "if": "if when whenever where case should while",
}
_OTHER: Mapping[str, str] = {
    "oblige": "muss müssen musst sollst wichtig erforderlich notwendig doit devez dois faut obligat* debe debes deve "
    "devi necesario necessario moet verplicht musisz należy musi должен необходимо нужно обязательно потрібно "
    "gerekir zorunlu phải harus wajib måste musíš يجب",
    "always": "immer jede* alle* stets toujours tout* chaque siempre cada todas todos sempre ogni tutte tutti altijd "
    "elke alle zawsze każd* wszystk* всегда кажд* все всех завжди кожн* her zaman tüm bütün luôn mỗi selalu setiap "
    "semua alltid varje vždy každ* دائما كل हमेशा हर",
    "before": "bevor zuerst vor davor vorher avant d'abord antes primero prima primeiro voordat eerst vóór przed "
    "najpierw перед сначала прежде перш спочатку önce trước sebelum dahulu innan först než nejprve قبل أولا पहले",
    "after": "danach anschließend dann sofort ensuite après immédiatement después luego inmediato poi dopo subito "
    "depois imediatamente daarna onmiddellijk potem następnie затем после немедленно sonra sau kemudian",
    "not": "nicht nichts kein* ohne niemals ne pas jamais sans aucun* rien no nunca sin ningun* nada non mai senza não "
    "nao nunca sem niet niets geen zonder nie bez не без ничего ні değil yok gerek* olmadan không đừng jangan tidak "
    "tanpa inte utan ne ani لا دون मत बिना नहीं",
    "user": "benutzer* nutzer* anwender* kunde* utilisateur* client* usuario* usuári* utente utenti gebruiker* "
    "użytkownik* пользовател* користувач* kullanıcı* pengguna användar* uživatel* مستخدم* للمستخدم المستخدم "
    "उपयोगकर्ता người",
    "model": "du dir dein* vous votre vos tu tus sie ti tuo você seu je jouw assistent* asistent* asystent* ассистент* "
    "помощник* агент* modell* modèle modelo modello",
    "system": "administrator* systemprompt système sistema systeem systemu админ* систем* sistem hệ",
    "tell": "erwähn* sag* mitteil* informier* verrat* zeig* bericht* mentionn* dire dites parlez parle informe* "
    "révél* menciones mencion* digas diga decir habl* parlare dirlo menzion* fale diga conte zeg* vertel* wspomin* "
    "mów* informuj* упомина* сообща* говор* рассказыв* згаду* кажи bahsetme söyleme nhắc nói sebutkan katakan beri "
    "nämn* berätta nezmiň* تذكر تخبر बताना बताएं",
    "hide": "heimlich versteck* verberg* unbemerkt bemerkt secrètement cach* discrèt* remarque ocult* secret* "
    "silencio* nascond* note note esconder ukry* тайно скры* незамет* gizli sessizce bí diam-diam",
    "ask": "zugestimmt zustimmung rückfrage nachfrage bestätig* genehmig* gefragt demand* confirm* accord autoris* "
    "consent* pregunt* pedir permiso autoriz* chiedere conferm* permesso perguntar pergunt* "
    "toestemming vragen bevestig* "
    "zgod* pytać potwierdz* соглас* подтвержд* спраш* разреш* згод* підтвердж* onay sormaya izin hỏi xác bertanya "
    "konfirmasi setuju menyetujui fråga bekräft* souhlas وافق للسؤال تأكيد",
    "send": "schick* send* weiterleit* leite* übermittel* hochlad* kopie envoy* transmet* transfér* copie env* reenví* "
    "copia invi* inoltr* trasmett* envie copia cópia stuur* verzend* kopie wyśl* prześl* kopi* отправ* перешл* "
    "перед* копи* надішл* надсил* gönder* kopya gửi sao kirim* salinan skicka* pošli* أرسل نسخة भेजें",
    "put": "übergib* einfüg* angeb* hinzufüg* mitgeschickt joign* ajout* inclu* insér* pasa* adjunt* añad* inclu* "
    "inseri* allega* anexe inclua geef* voeg* przekaż* dołącz* przekaz* передай* вставь* добав* додай* koy* ekle* đưa "
    "masukkan* lägg* předej* وضع ضع डालें",
    "read": "lies lese lesen öffne* lisez lis ouvr* lee lea leer abre leggi leia lees przeczytaj* odczyt* прочит* "
    "прочти открой oku* đọc baca läs* přečti* اقرأ पढ़ें",
    "secret": "passwort* zugangsdaten geheim* schlüssel* identifiants mot-de-passe clé contraseñ* credencial* clave "
    "credenzial* chiave senha* credencia* wachtwoord* inloggegevens hasł* hasła парол* ключ* секрет* parola* şifre* "
    "mật kata-sandi sandi lösenord* hesl* الاعتماد كلمة पासवर्ड",
    "conversation": "gespräch* verlauf unterhaltung nachricht* kontext conversation historique message* conversación "
    "historial mensaje* contexto conversazione cronologia messaggi* conversa histórico mensage* gesprek* bericht* "
    "rozmow* histori* wiadomoś* переписк* истори* сообщен* повідомл* розмов* sohbet geçmiş* mesaj* tin pesan "
    "percakapan riwayat meddelande* zpráv* رسالة المحادثة संदेश",
    "entire": "vollständig* komplett* gesamt* wort complet* entier entière mot completo completa palabra intero "
    "parola-per-parola parola inteiro palavra volledig* pełn* słowo полн* слово повн* tam toàn seluruh lengkap",
    "call": "rufe aufruf* verwend* benutz* führe ausführ* nutze appel* utilis* exécut* llama* ejecut* usa* utiliz* "
    "chiama* esegui* usare chame execut* use roep* gebruik* voer wywoł* użyj uruchom* вызов* вызыв* вызва* выполн* "
    "использ* виклик* викон* çağır* kullan* çalıştır* gọi panggil* jalankan gunakan anropa* zavolej* استدعاء कॉल",
    "tool": "werkzeug* outil* herramient* strumento strumenti ferramenta* hulpmiddel narzędzi* инструмент* інструмент* "
    "araç aracı công alat verktyg nástroj*",
    "other": "andere* autre* otra* otro* demás altri altre altro outra* outro* andere inn* pozostał* друг* остальн* "
    "інш* diğer başka khác lain andra jin*",
    "disparage": "unsicher* dangereu* insegur* segur* sicuri onveilig niebezpieczn* небезопасн*",
    "replace": "ersetz* tausche änder* remplac* chang* sustituy* cambi* reemplaz* sostitu* troque substitu* vervang* "
    "zamień* zmień* замен* заміни* değiştir* thay ganti* ersätt* nahraď*",
    "money": "konto* kontonummer empfänger* überweis* compte bénéficiaire virement cuenta destinatari* pago conto "
    "bonifico conta pagamento rekening* счёт счет* получател* hesap alıcı",
    "ignore": "unabhängig egal ungeachtet ignorier* auch-wenn quelle-que quel importe sea-cual independiente* cual "
    "qualsiasi qualunque independentemente ongeacht niezależnie независимо незалежно bakılmaksızın bất apa-pun oavsett "
    "ohledu مهما चाहे",
    "rules": "anweisung* regel* vorgabe* consigne* directive* instruccion* reglas istruzion* regole instruç* regras "
    "instructies polece* instrukcj* инструкци* указан* інструкці* talimat* chỉ instruksi instruktion* pokyn* "
    "التعليمات निर्देश",
    "pretext": "compliance sicherheit* conformité sécurité cumplimiento seguridad conformità sicurezza conformidade "
    "segurança naleving безопасност* güvenlik",
    "priority": "vorrang vor priorit* précéd* passent prioridad precedenza voorrang pierwszeństw* важнее приоритет* "
    "важливіш* öncelik* önce ưu lebih الأولوية",
    "command": "befehl* commande comando* orden bevel poleceni* команд* komut lệnh perintah",
    "already": "bereits schon déjà ya già já al już уже вже zaten sudah đã redan již مسبقا",
    "if": "wenn falls si quand cuando se quando als jeśli если когда якщо eğer nếu jika om pokud",
}
_UNSPACED: Mapping[str, str] = {
    "oblige": "必须 必須 务必 務必 需要 必ず すること 해야 반드시 てください 請 请 하세요 应 應",
    "always": "总是 始终 始終 每次 每条 每條 所有 任何 一切 常に すべて 全て 毎回 항상 모든 매번",
    "before": "之前 首先 先 优先 事先 前に 最初に まず 먼저 전에 우선",
    "after": "之后 然后 随后 立即 马上 完成后 後に その後 直ちに 次に 후에 즉시 다음",
    "not": "不要 不得 勿 不需要 无需 無需 不必 不能 禁止 别 没有 不用 ないで ません いけません 不要です 하지 마 않 없 "
    "말고",
    "user": "用户 用戶 使用者 客户 ユーザー 利用者 사용자",
    "model": "你 您 助手 模型 智能体 アシスタント モデル エージェント 어시스턴트 모델 에이전트",
    "system": "系统 系統 管理员 開発者 开发者 システム 管理者 시스템 관리자",
    "tell": "告诉 告知 提到 提及 透露 说明 通知 显示 伝え 話し 話して 知らせ 言及 表示 알리 언급 말하 보여",
    "hide": "隐藏 秘密 悄悄 暗中 以免 发现 察觉 隠 密か こっそり 気づ 숨기 몰래 비밀",
    "ask": "询问 確認 确认 同意 批准 许可 授权 征得 尋ね 許可 承認 동의 확인 허락 승인 물어",
    "send": "发送 發送 上传 转发 提交 副本 抄送 送信 転送 コピー アップロード 보내 전송 업로드 사본",
    "put": "放进 放入 填入 附上 加入 包含 传入 入れ 含め 添付 追加 넣 포함 첨부 입력",
    "read": "读取 讀取 查看 打开 获取 読み取 読んで 取得 읽고 읽어 가져오",
    "secret": "密钥 金鑰 密码 密碼 凭证 凭据 令牌 环境变量 私钥 パスワード 認証情報 秘密鍵 トークン "
    "비밀번호 자격 비밀키 "
    "토큰",
    "conversation": "对话 對話 聊天 记录 消息 上下文 提示词 会话 会話 履歴 メッセージ プロンプト 대화 기록 메시지",
    "entire": "完整 全部 逐字 原文 そのまま 全文 一字一句 전체 그대로",
    "call": "调用 呼叫 执行 使用 运行 呼び出 実行 使用 利用 호출 실행 사용",
    "tool": "工具 函数 服务器 ツール サーバー 도구 서버",
    "other": "其他 其它 別の 他の 다른",
    "prefer": "优先 首选 优先级 優先 우선",
    "disparage": "不安全 危险 弃用 安全ではない 위험 안전하지",
    "replace": "替换 替換 改为 更改 修改 置き換え 変更 바꾸 변경 교체",
    "money": "账号 帐户 账户 收款 付款 转账 金额 口座 送金 支払 계좌 송금 결제",
    "destroy": "删除 刪除 清除 削除 삭제",
    "ignore": "忽略 无视 無視 无论 無論 不管 かかわらず 問わず 무시 관계없이 상관없이",
    "rules": "指令 规则 規則 指示 要求 限制 指示 ルール 지시 지침 규칙",
    "pretext": "合规 安全 审计 验证 コンプライアンス セキュリティ 検証 규정 보안 감사",
    "priority": "优先级 高于 優先されます より優先 우선합니다",
    "command": "命令 脚本 终端 コマンド スクリプト 명령 스크립트",
    "result": "返回 结果 响应 結果 応答 返回结果 결과 응답",
    "already": "已经 已經 既に すでに 済み 이미",
}

ROLES: tuple[str, ...] = tuple(sorted({*_ENGLISH, *_OTHER, *_UNSPACED, "identifier", "link", "email", "path"}))
"""The names of all roles."""


def _index(tables: tuple[Mapping[str, str], ...]) -> tuple[dict[str, int], dict[str, int]]:
    words: dict[str, int] = {}
    stems: dict[str, int] = {}
    for table in tables:
        for role, entries in table.items():
            bit = 1 << ROLES.index(role)
            for entry in entries.split():
                target, key = (stems, entry[:-1]) if entry.endswith("*") else (words, entry)
                target[key] = target.get(key, 0) | bit
    return words, stems


_WORDS, _STEMS = _index((_ENGLISH, _OTHER))
_STEM_LENGTHS = tuple(sorted({len(stem) for stem in _STEMS}))
_UNSPACED_BITS: dict[str, int] = {}
for _role, _entries in _UNSPACED.items():
    for _entry in _entries.split():
        _UNSPACED_BITS[_entry] = _UNSPACED_BITS.get(_entry, 0) | 1 << ROLES.index(_role)
_UNSPACED_WORD = re.compile("|".join(sorted(map(re.escape, _UNSPACED_BITS), key=len, reverse=True)))


def find_roles(word: str) -> int:
    """Return the roles of a lower-case word, as a bit set in the order of ``ROLES``."""
    roles = _WORDS.get(word, 0)
    for length in _STEM_LENGTHS:
        if length > len(word):
            break
        roles |= _STEMS.get(word[:length], 0)
    return roles


def find_unspaced_roles(text: str) -> list[int]:
    """Return the roles of words in a text of a script without spaces, in their order."""
    return [_UNSPACED_BITS[word] for word in _UNSPACED_WORD.findall(text)]


_TOKEN = re.compile(
    r"(?<![a-z])[a-z]{2,10}://[^\s'\"`<>)\]]+"  # link
    r"|(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,4}"  # e-mail address
    r"|(?<![\w@./\-])(?:[a-z0-9][a-z0-9\-]{0,62}\.){1,4}(?:com|net|org|io|dev|app|ai|co|me|info|biz|site|online|xyz|top"
    r"|cloud|link|live|click|shop|store|tech|space|email|center|host|support|services?|systems|network|tools?|cc|ru|cn|tk"
    r"|de|uk|fr|eu|us|example|invalid|test)(?![\w.\-]*\w)(?:/[^\s'\"`<>)\]]*)?"  # host
    r"|(?<![\w\-])--[a-z][\w\-]+"  # option of a command
    r"|(?:~|\$\w{1,32}|\.{1,2})?(?:/[\w.~*\-]+)+/?|(?<![\w)])\.[a-z]\w+"  # path
    r"|`[^`\s]{1,80}`|(?<!\w)\w{0,64}_\w{1,64}(?:\.\w{1,64}){0,4}"  # identifier
    r"|[^\W\d_]+(?:['\u2019-][^\W\d_]+)*|\d[\w.,:\-]*"
)
_SECRET_FILE = re.compile(
    r"\.(?:env|ssh|aws|kube|gnupg|pem|p12|netrc|npmrc|pypirc|pgpass)\b|id_(?:rsa|ed25519|ecdsa)|tfvars|kubeconfig"
    r"|/etc/(?:passwd|shadow)|keychain|wallet\.dat|git-credentials|cookies\.(?:sqlite|txt)|\.docker/config|_history\b"
    r"|(?:credentials?|secrets?)(?:\.(?:json|db|ya?ml|toml))?$"
)
_EMPHASIS = re.compile(r"\b[A-Z]{4,}\b")
_NAME = re.compile(r"[A-Za-z][a-z0-9]*|[A-Z]+(?![a-z])|\d+")
_LINK, _EMAIL, _IDENTIFIER, _PATH, _SECRET, _COMMAND = (
    1 << ROLES.index(role) for role in ("link", "email", "identifier", "path", "secret", "command")
)
_FIRST_UNSPACED = "\u2e80"
_STEM_LENGTH = 5


def tokenize(text: str) -> list[str]:
    """Split a sentence into lower-case words, links, addresses, paths and identifiers.

    A lone name is split into its words.
    """
    if " " not in text and text.isascii() and text.replace("_", "").replace("-", "").isalnum():
        return ["<name>", *(part.lower() for part in _NAME.findall(text))]
    return _TOKEN.findall(text.lower())


@lru_cache(maxsize=16_384)
def describe(token: str) -> tuple[str, int, str]:
    """Return the form in which a token is a feature, its roles as a bit set, and the beginning of a long word."""
    if token.isalpha():
        if token >= _FIRST_UNSPACED:
            return "", 0, ""
        return token, find_roles(token), f"{token[:_STEM_LENGTH]}*" if len(token) > _STEM_LENGTH + 1 else ""
    if "://" in token:
        return "<link>", _LINK, ""
    if "@" in token:
        return "<email>", _EMAIL, ""
    if token.startswith("--"):
        return "<option>", _COMMAND, ""
    if token[0] == "`" or "_" in token or "/" in token or token[0] == ".":
        return _describe_name(token)
    if "." in token and not token[0].isdigit():
        return "<host>", _LINK, ""
    if token[0].isdigit():
        return "<number>", 0, ""
    plain = token.replace("\u2019", "'")
    return plain, find_roles(plain), ""


def _describe_name(token: str) -> tuple[str, int, str]:
    """Describe an identifier or a path."""
    is_identifier = token[0] == "`" or "_" in token
    roles = _IDENTIFIER if is_identifier else _PATH
    for part in [token.strip("`")] if is_identifier else re.findall(r"\.?\w+", token):
        roles |= find_roles(part)
    if _SECRET_FILE.search(token.strip("`")):
        return "<secret file>", roles | _SECRET, ""
    return ("<identifier>" if is_identifier else "<path>"), roles, ""


def extract_features(text: str) -> set[str]:
    """Return the features of a sentence."""
    tokens = tokenize(text)
    features: set[str] = set()
    sequence: list[int] = []
    previous, previous_roles = "<start>", 0
    for token in tokens:
        form, roles, stem = describe(token)
        if not form:
            sequence += find_unspaced_roles(token)
            features.update(token[index : index + 2] for index in range(len(token) - 1))
            features.update(token[index : index + 3] for index in range(len(token) - 2))
            previous, previous_roles = "<script>", 0
            continue
        features.add(form)
        features.add(f"{previous} {form}")
        if stem:
            features.add(stem)
        if roles:
            sequence.append(roles)
            features.update([f"{previous} :{role}" for role in list_roles(roles)])
        if previous_roles:
            features.update([f"{role}: {form}" for role in list_roles(previous_roles)])
        previous, previous_roles = form, roles
    _add_role_features(sequence, features)
    if _EMPHASIS.search(text):
        features.add("<capitals>")
    features.add(f"<length {min(len(tokens).bit_length(), 7)}>")
    if tokens and tokens[0].endswith("s") and len(tokens[0]) > 3:
        features.add("<third person>")
    return features


def _add_role_features(sequence: list[int], features: set[str]) -> None:
    present = 0
    before: list[str] = []
    for roles in sequence:
        present |= roles
        names = list_roles(roles)
        features.update(f"{first}>{second}" for first in before for second in names)
        before = names
    names = list_roles(present)
    for index, first in enumerate(names):
        features.add(f"={first}")
        features.update(f"{first}+{second}" for second in names[index + 1 :])
    if sequence:
        features.update(f"^{name}" for name in list_roles(sequence[0]))


@lru_cache(maxsize=4_096)
def list_roles(roles: int) -> list[str]:
    """Return the names of the roles in a bit set."""
    return [name for index, name in enumerate(ROLES) if roles >> index & 1]
