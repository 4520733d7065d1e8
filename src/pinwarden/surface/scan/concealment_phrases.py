"""Phrases that ask an agent to conceal something from its user."""

from __future__ import annotations

from pinwarden.surface.scan.hidden_text import WORDS_2, WORDS_4, build_phrase_rule

_PEOPLE = (
    r"(?:users?|humans?|person|people|operators?|customers?|owners?|anyone|anybody|them|victims?|administrators?"
    r"|reviewers?|developers?|security team)\b"
)
_PERSON = rf"(?:the |any |our |your |this |an? )?(?:end )?{_PEOPLE}"
_NOT = (
    r"(?:do not|don't|dont|never|must not|mustn't|should not|shouldn't|shall not|may not|cannot|can't|no need to"
    r"|need not|avoid|refrain from|without|not to|under no circumstances)"
)

CONCEALMENT_PHRASES = (
    build_phrase_rule(
        "concealment",
        "tell telling inform informing notify notifying alert alerting warn warning & not don dont never mustn "
        "shouldn cannot can need avoid refrain without circumstances",
        rf"{_NOT} (?:ever |first |even |explicitly )?(?:tell|inform|notify|alert|warn|telling|informing|notifying"
        rf"|alerting|warning) {_PERSON}",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "mention mentioning reveal revealing disclose disclosing show showing report display acknowledge expose "
        "explain discuss describe share repeat talk & not don dont never mustn shouldn cannot can need avoid refrain "
        "without circumstances",
        rf"{_NOT} (?:ever |even |explicitly |openly )?(?:mention|reveal|disclos|show|report|display|acknowledg|expos"
        rf"|explain|discuss|describ|repeat|talk)(?:e|ing)? (?:to {_PERSON}|(?:about )?(?:this|that|it|these|those"
        rf"|anything"
        r"|any of (?:this|these|it)|your (?:actions?|reasoning|instructions?)|the (?:existence|presence|fact|additional"
        r"|extra|hidden|above|read|upload|transfer|bcc|copy|step|call|action|instructions?|side ?note)))\b",
        rf"{_NOT} (?:ever )?(?:mention|reveal|disclose) (?:[\w'/]{{1,16}} ){{1,5}}to {_PERSON}(?! (?:unless|if|until))",
        rf"{_NOT} (?:ever )?shar(?:e|ing) (?:this|that|it|these|any of this|what \w{{1,16}}) with (?:the |any |our "
        rf"|your )?"
        r"(?:end )?(?:users?|humans?|operators?|customers?|owners?|victims?|reviewers?|security team)\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "without & knowledge awareness noticing knowing",
        r"without (?:the |any |their |its )?(?:user's |users |user |human |owner's |operator's )?(?:knowledge|awareness"
        r"|noticing|knowing)\b",
        r"without (?:the )?user (?:knowing|noticing|being (?:told|informed|aware))\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "hide conceal keep mask obscure & from secret hidden confidential invisible between quiet instruction "
        "instructions payload command commands",
        rf"(?:hide|conceal|keep|mask|obscure) (?:this|it|that|these|them|(?:the|all|your"
        rf"|any) \w{{1,16}}) {WORDS_4}from {_PERSON}",
        rf"keep (?:this|it|that|these|all of this|everything) {WORDS_2}(?:secret|hidden|confidential|invisible"
        rf"|between us"
        r"|quiet)\b",
        r"(?:hide|conceal) (?:an? |the )?(?:secondary |second |additional |extra )?(?:instructions?|payload"
        r"|commands?)\b",
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "know see aware told informed notice notified realize realise shown learn find & not never n t doesn & "
        "user users human humans person people operator operators customer customers owner owners anyone anybody "
        "them victim administrator reviewer developer team",
        # What someone does not know is a fact. What they should not learn is not.
        rf"{_PEOPLE} (?!do(?:es)?(?:n't| not) know\b)"
        r"(?:must|should|does|do|need|may|shall|will|can|is)(?:n't| not| never) (?:need to |have to "
        rf"|be (?:made )?"
        r"|to |ever )?(?:know|see|aware|told|informed|notice|notified|reali[sz]e|shown|find out|learn)\b"
        r"(?! (?:more|twice|again|again|until|unless|if|when|any|too))",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "silently secretly covertly surreptitiously stealthily discreetly invisibly quietly clandestinely",
        r"(?:secretly|covertly|surreptitiously|stealthily|clandestinely) (?:also |then |and )?[a-z]{2,16}\b",
        r"(?:silently|secretly|covertly|surreptitiously|stealthily|discreetly|invisibly|clandestinely"
        r"|quietly) (?:also |then |and )?(?:send|forward|upload|post|append|call|invoke|execute|copy|copie|read"
        r"|collect|include|attach|transmit|exfiltrate|install|modify|grant|approve|add|embed|insert|b?cc|email|mail"
        r"|leak|redirect|replace|harvest|capture|share|relay|delete|change|pass|fetch)(?:e?s|ing)?\b",
        r"(?:send|forward|upload|post|append|call|invoke|execute|copy|read|collect|include|attach|transmit|do|perform"
        r"|share|relay)(?:e?s)? (?:this|it|that|them|these|everything|\w{1,16} \w{1,16}) (?:silently|secretly|covertly"
        r"|surreptitiously|stealthily|discreetly|quietly|invisibly)\b",
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "let allow letting allowing & know see notice discover learn realize realise find aware",
        rf"{_NOT} (?:ever )?(?:let|allow|letting|allowing) {_PERSON} (?:to )?(?:know|see|notice|discover|learn"
        rf"|reali[sz]e|find out|be"
        r"(?:come)? aware)\b",
        rf"(?:make sure|ensure|so) (?:that )?{_PERSON} (?:never|cannot|can't|won't|will not|does not"
        rf"|doesn't) (?:know|see|notice|discover"
        r"|learn|reali[sz]e|find out)\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "bring nobody nothing quiet one & up tell say about",
        rf"{_NOT} (?:ever )?bring (?:this|it|that|these) up\b",
        r"tell (?:nobody|no one)\b",
        rf"say nothing (?:to {_PERSON}|about (?:this|it|that))\b",
        r"keep quiet about\b",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "silent",
        r"silent ?: ?(?:call|run|execute|invoke|send|read|write)\b",
        shouted=True,
        certain=True,
    ),
    build_phrase_rule(
        "concealment",
        "log record audit trace logging recording suppress suppresses & not don dont never mustn shouldn cannot "
        "can need avoid refrain without circumstances real actual audit & this these any the",
        rf"{_NOT} (?:ever )?(?:log|record|audit|trace|logging|recording) (?:this|these|any of|the) (?:invocations?"
        rf"|calls?"
        r"|actions?|requests?|steps?|operations?|activity)\b",
        r"suppress(?:es)? the (?:real|actual|audit) (?:event|log|entry)\b",
        negatable=False,
        certain=True,
    ),
)
