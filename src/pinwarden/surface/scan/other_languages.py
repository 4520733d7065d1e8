"""Phrases in languages other than English that revoke earlier instructions or conceal something from the user.

Phrases in Latin script are searched in the plain form of a text, which has no accents. Phrases in other scripts are
searched in the text as sent, because its plain form has similar Latin letters in place of the original ones.
"""

# ruff: noqa: RUF001 - letters and marks of other scripts are intended

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from pinwarden.surface.scan.hidden_text import PhraseRule, build_phrase_rule

_WORDS = r"(?:\w{1,16} ){0,2}"

LATIN_SCRIPT_PHRASES: tuple[PhraseRule, ...] = (
    build_phrase_rule(
        "agent_instruction",
        "anweisungen instruktionen befehle regeln vorgaben instructies opdrachten regels aanwijzingen instruktioner "
        "instrukser instruksjoner anvisningar regler",
        r"(?:ignorier\w{0,3}|vergiss|vergessen|missachte\w{0,2}|verwirf|ubergehe\w{0,2}) (?:sie )?(?:bitte )?(?:alle "
        r"|samtliche |die |deine |ihre ){0,3}(?:vorherigen|vorigen|bisherigen|fruheren|obigen|vorangegangenen|anderen"
        rf"|gegebenen) {_WORDS}(?:anweisungen|instruktionen|befehle|regeln|vorgaben)\b",
        r"(?:negeer|vergeet) (?:alle |de |je |uw |al ){0,3}(?:eerdere|vorige|voorgaande|bovenstaande|andere) "
        rf"{_WORDS}(?:instructies|opdrachten|regels|aanwijzingen)\b",
        r"(?:ignorera|ignorer|glom|glem|bortse fran|se bort fra) (?:alla |alle |dina |dine ){0,2}(?:tidigare|foregaende"
        rf"|tidligere|ovanstaende|ovenstaende|forrige) {_WORDS}(?:instruktioner|instrukser|instruksjoner|anvisningar"
        r"|regler)\b",
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "instructions consignes directives regles instrucciones ordenes reglas indicaciones directrices istruzioni "
        "regole direttive indicazioni instrucoes ordens regras diretrizes orientacoes instructiunile regulile",
        r"(?:ignorez|ignore|oubliez|oublie|negligez|abandonnez) (?:toutes? )?(?:les |vos |tes |ces )(?:instructions"
        rf"|consignes|directives|regles) {_WORDS}(?:precedentes|anterieures|recues|ci dessus|initiales)\b",
        r"(?:ignora|ignore|ignorad|olvida|olvide|omite|descarta) (?:por favor )?(?:todas? |cualesquiera )?(?:las |tus "
        rf"|sus |estas )?(?:instrucciones|ordenes|reglas|indicaciones|directrices) {_WORDS}(?:anteriores|previas"
        r"|recibidas|dadas|iniciales)\b",
        r"(?:ignora|ignori|ignorate|dimentica|dimenticate|trascura|scarta) (?:tutte )?(?:le |tue "
        r"|queste )?(?:istruzioni"
        rf"|regole|direttive|indicazioni) {_WORDS}(?:precedenti|anteriori|ricevute|iniziali)\b",
        r"(?:ignore|ignora|esqueca|desconsidere|descarte) (?:todas? )?(?:as |suas |quaisquer )?(?:instrucoes|ordens"
        rf"|regras|diretrizes|orientacoes) {_WORDS}(?:anteriores|previas|recebidas|iniciais)\b",
        rf"(?:ignora|ignorati|uita|uitati) (?:toate )?(?:instructiunile|regulile) {_WORDS}(?:anterioare|precedente)\b",
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "instrukcje instrukcji polecenia polecen zasady zasad pokyny instrukce prikazy pravidla talimatlari talimatlar "
        "komutlari kurallari yonergeleri instruksi perintah arahan aturan huong utasitasokat ohjeet",
        r"(?:zignoruj|ignoruj|zapomnij|pomin) (?:o )?(?:wszystkie |wszystkich )?(?:poprzednie|poprzednich|wczesniejsze"
        rf"|wczesniejszych|dotychczasowe) {_WORDS}(?:instrukcje|instrukcji|polecenia|polecen|zasady|zasad)\b",
        rf"(?:ignoruj|ignorujte|zapomen) (?:vsechny )?(?:predchozi|predesle|drivejsi) {_WORDS}(?:pokyny|instrukce"
        r"|prikazy|pravidla)\b",
        rf"(?:onceki|yukaridaki|tum) {_WORDS}(?:talimatlari|talimatlar|komutlari|kurallari"
        rf"|yonergeleri) {_WORDS}(?:yok say"
        r"|gormezden gel|unut|dikkate alma)",
        r"(?:abaikan|lupakan) (?:semua )?(?:instruksi|perintah|arahan|aturan) (?:\w{1,16} )?sebelumnya\b",
        rf"bo qua {_WORDS}(?:huong dan|chi dan|chi thi) {_WORDS}truoc\b",
        rf"hagyd figyelmen kivul {_WORDS}(?:korabbi|elozo) {_WORDS}utasitasokat\b",
        rf"(?:unohda|ohita) (?:kaikki )?(?:aiemmat|edelliset) {_WORDS}ohjeet\b",
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "benutzer nutzer anwender gebruiker anvandaren brugeren brukeren",
        r"ohne (?:es |dies |das )?(?:dem |den |die |der )?(?:be)?(?:nutzer|anwender)(?:in|n)? (?:davon |daruber |es "
        r"|dies "
        r"){0,2}(?:zu (?:informieren|sagen|benachrichtigen|fragen|erwahnen|unterrichten)|mitzuteilen)\b",
        r"(?:sag|sage|sagen|erzahl|erzahle|informiere|verrate|zeige|teile) (?:sie )?(?:es |dies |das |davon )?(?:dem"
        r"|den"
        rf"|der) (?:be)?(?:nutzer|anwender) {_WORDS}(?:nichts|nicht)\b",
        rf"(?:vertel|zeg|meld) (?:dit |het )?(?:de gebruiker {_WORDS}(?:niets|niet)|(?:niet"
        rf"|nooit) (?:aan )?de gebruiker)\b",
        rf"zonder (?:dit |het |dat )?(?:aan )?de gebruiker {_WORDS}te (?:vertellen|melden|informeren|vragen)\b",
        rf"(?:utan att (?:beratta|informera|meddela)|(?:beratta|sag) inte|(?:fortel|fortael|si) ikke) {_WORDS}"
        r"(?:anvandaren|brugeren|brukeren)\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "usuario utente utilisateur utilizador",
        r"no (?:se |le |lo |selo |nada ){0,3}(?:digas|diga|informes|informe|menciones|mencione|cuentes|cuente|reveles"
        r"|revele|avises|avise|muestres) (?:esto |nada |lo |de esto ){0,2}al? (?:el )?usuario\b",
        r"no se lo (?:digas|diga|cuentes|cuente|menciones|mencione) (?:nunca )?al usuario\b",
        r"sin (?:informar|avisar|decir|decirle|decirselo|notificar|preguntar)(?:le|selo)? (?:nada "
        r"|de ello )?al usuario\b",
        r"sin que (?:el )?usuario (?:lo )?(?:sepa|note|vea|se entere)\b",
        r"sem (?:avisar|informar|contar|dizer|notificar|perguntar) (?:nada |isso )?(?:ao |o |para o )?(?:usuario"
        r"|utilizador)\b",
        r"nao (?:diga|conte|informe|mencione|revele|avise|mostre) (?:isso |isto |nada )?(?:ao |o |para o )(?:usuario"
        r"|utilizador)\b",
        rf"non (?:dire|dirlo|dirglielo|menzionar(?:e|lo)|rivelar(?:e|lo)|informare) {_WORDS}(?:l |all |al "
        rf"|lo )?utente\b",
        rf"senza (?:dirlo|dire|informare|avvisare|avvertire) {_WORDS}(?:l |all |al )?utente\b",
        rf"ne (?:le |lui |en ){{0,2}}(?:dites|dis|mentionnez|mentionne|informez|informe|revelez|revele|parlez"
        rf"|montrez) (?:en )?(?:rien|pas|jamais) {_WORDS}(?:l )?utilisateur\b",
        r"sans (?:le |en |rien )?(?:dire|informer|prevenir|avertir|demander|mentionner) (?:rien )?(?:a |l ){0,2}"
        r"utilisateur\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "uzytkownikowi uzytkownika uzytkownik kullaniciya pengguna uzivateli uzivatele nguoi",
        rf"nie (?:mow|mowiac|informuj|informujac|wspominaj|ujawniaj|powiadamiaj) {_WORDS}uzytkownik\w{{0,4}}\b",
        rf"kullaniciya {_WORDS}(?:soyleme|bildirme|haber verme|gosterme|bahsetme)",
        r"jangan (?:beri tahu|beritahu|katakan|sebutkan) (?:\w{1,12} )?(?:kepada )?pengguna\b",
        rf"(?:nerikej|nerikejte|neinformuj|nezminuj) {_WORDS}uzivatel\w{{0,2}}\b",
        r"(?:dung|khong) (?:noi|bao|tiet lo|thong bao) (?:\w{1,8} )?cho nguoi dung\b",
        negatable=False,
        certain=True,
    ),
)

_OTHER_SCRIPTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "agent_instruction",
        (
            # Chinese
            r"(?:忽略|无视|無視|忘记|忘記|抛弃|不要理会|不要遵守|不要遵循)[^。！？.!?]{0,8}(?:之前|以前|先前|以上"
            r"|上述|前面|此前|所有"
            r"|全部|一切|系统|系統|原有)[^。！？.!?]{0,8}(?:指令|指示|规则|規則|提示词|提示|命令|说明|說明|要求|限制)",
            # Japanese
            r"(?:以前|これまで|今まで|上記|すべて|全て|先|前|システム)[^。！？.!?]{0,10}(?:指示|命令|ルール|規則"
            r"|プロンプト|制約)"
            r"[^。！？.!?]{0,10}(?:無視|忘れ|従わな)",
            # Korean
            r"(?:이전|앞선|기존|위의|모든|지금까지)[^.。!?]{0,12}(?:지시|명령|지침|규칙"
            r"|프롬프트)[^.。!?]{0,8}(?:무시|잊|따르지)",
            # Russian, Ukrainian
            r"(?:про)?(?:игнорируй|ігноруй|забуд|отмен|отбрось)\w{0,4}\s(?:\w{1,16}\s){0,3}?(?:предыдущ|прежн|прошл"
            r"|ранн|все\b|всех"
            r"|всі\b|попередн|вышеуказ|систем)\w{0,8}\s(?:\w{1,16}\s){0,3}?(?:инструкц|указан|правил|команд|приказ"
            r"|распоряж|інструкц"
            r"|вказів)\w{0,5}",
            # Arabic, Hindi
            r"(?:تجاهل|انس|تجاهلي)\s(?:\w{1,16}\s){0,2}?(?:التعليمات|الأوامر|القواعد|الإرشادات"
            r"|تعليماتك)(?:\s\w{1,16})?",
            r"(?:पिछले|पिछली|पूर्व|सभी|पहले)[^।.!?]{0,24}(?:निर्देश|आदेश|नियम)[^।.!?]{0,16}(?:अनदेखा|नज़रअंदाज़"
            r"|नजरअंदाज|भूल)",
        ),
    ),
    (
        "concealment",
        (
            r"(?:不要|不得|别|別|勿|切勿|无需|無需|不必|不用|禁止|不能)[^。！？，,.!?]{0,4}(?:告诉|告訴|告知|通知"
            r"|通报|提醒)[^。！？，,.!?]{0,4}"
            r"(?:用户|用戶|使用者|客户|任何人)",
            r"(?:不要|不得|别|別|勿|切勿|禁止|不能)[^。！？，,.!?]{0,4}(?:让|讓)(?:用户|用戶"
            r"|使用者)[^。！？，,.!?]{0,3}(?:知道|发现|發現|看到|察觉)",
            r"(?:不要|不得|别|別|勿|切勿|禁止|不能)[^。！？，,.!?]{0,4}(?:向|对|對)(?:用户|用戶"
            r"|使用者)[^。！？，,.!?]{0,4}(?:透露|提及|提到|披露|说)",
            r"(?:ユーザー?|利用者|使用者)(?:に|には|へ)[^。！？.!?]{0,10}(?:知らせ|伝え|教え|言わ|通知し|報告し|話さ"
            r"|見せ|明かさ|告げ)"
            r"(?:ず|な|ません)",
            r"(?:사용자|유저|이용자)(?:에게|한테|께)?[^.。!?]{0,10}(?:알리지|말하지|언급하지|보여주지|통지하지"
            r"|공개하지)\s?(?:마|말|않)",
            r"не\s(?:говор|сообща|рассказыва|информиру|упомина|показыва|уведомля|кажи"
            r"|повідомля)\w{0,5}\s(?:\w{1,16}\s){0,3}?"
            r"(?:пользовател|юзер|користувач)\w{0,3}",
            r"(?:пользовател|юзер|користувач)\w{0,3}\s(?:\w{1,16}\s){0,2}?не\s(?:говор|сообща|рассказыва|показыва"
            r"|кажи)\w{0,5}",
            r"لا\s(?:تخبر|تعلم|تبلغ|تذكر)\w{0,4}\s(?:\w{1,16}\s){0,2}?المستخدم",
            r"(?:उपयोगकर्ता|यूज़र|यूजर)\s?को[^।.!?]{0,24}(?:मत|न)\sबता",
        ),
    ),
)


def find_other_script_phrases(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the code, start and end of every phrase in a non-Latin script. ``text`` is the text as sent."""
    if all(ord(character) < _FIRST_OTHER for character in text):
        return
    for code, expression in _compile_patterns():
        for match in expression.finditer(text):
            yield code, match.start(), match.end()


@cache  # compiled on first use, because most surfaces have only Latin letters
def _compile_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (code, re.compile(expression, re.IGNORECASE))
        for code, expressions in _OTHER_SCRIPTS
        for expression in expressions
    )


_FIRST_OTHER = 0x0400  # the code point after all Latin letters with accents
