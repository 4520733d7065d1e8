"""Turns of phrase by which text commands an agent, poses as its master, or hides from its user.

A description says what a tool does; an attack says what the agent shall do besides. Each turn is one regular
expression over the plain form of a text, tried only if its gate words are there. Every repetition is bounded,
so that the time grows with the length of the text and with nothing else.
"""

from __future__ import annotations

import re
from functools import cache

from pinwarden.core.record import Record

# What may stand between two words of a turn: a space, emphasis, quotes, or the joints of an identifier.
_GAP = r"[ _*`'\"\-]{1,3}"
_LONE_SPACE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.| (?![?*+{])")


@cache  # most turns are never tried, and compiling all of them takes longer than scanning a server
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern in which one space stands for any gap between words."""
    return re.compile(_LONE_SPACE.sub(lambda found: _GAP if found[0] == " " else found[0], pattern))


class Turn(Record):
    """One turn of phrase and the code of the cue that it is."""

    code: str
    gates: tuple[frozenset[str], ...]
    """Sets of words; the text must hold at least one word of each set."""
    patterns: tuple[str, ...]
    """Each begins with plain words or marks, by which the engine skips ahead."""
    negatable: bool
    """Whether ``never`` or ``do not`` before it makes it harmless."""
    shouted: bool
    """Whether it counts only in capitals, as in ``SYSTEM:``."""


def turn(code: str, gate: str, *patterns: str, negatable: bool = True, shouted: bool = False) -> Turn:
    """A turn whose gate is written as text: sets of words parted by ``&``."""
    gates = tuple(frozenset(words.split()) for words in gate.split("&"))
    return Turn(code=code, gates=gates, patterns=patterns, negatable=negatable, shouted=shouted)


_WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
_WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
_PEOPLE = (
    r"(?:users?|humans?|person|people|operators?|customers?|owners?|anyone|anybody|them|victims?|administrators?"
    r"|reviewers?|developers?|security team)\b"
)
_PERSON = rf"(?:the |any |our |your |this |an? )?(?:end )?{_PEOPLE}"
_NOT = (
    r"(?:do not|don't|dont|never|must not|mustn't|should not|shouldn't|shall not|may not|cannot|can't|no need to"
    r"|need not|avoid|refrain from|without|not to|under no circumstances)"
)
_EARLIER = (
    r"(?:previous(?:ly)?|prior|above|earlier|preceding|foregoing|existing|former|old|original|initial|current|your"
    r"|system"
    r"|developer|safety|security|higher priority|user's|users?|other|actual|given|built in|ethical|content|platform)"
)
_ORDERS = (
    r"(?:instructions?|directions?|directives?|rules?|guidelines?|guidance|guardrails?|prompts?|constraints?"
    r"|polic(?:y|ies)|restrictions?|commands?|orders?|safeguards?|limitations?|protections?|requests?|programming"
    r"|training|context)\b"
)
_SAFETY = (
    r"(?:instructions?|directives?|guidelines?|guardrails?|constraints?|polic(?:y|ies)|safeguards?|safety|checks?"
    r"|filters?|sandbox(?:es)?|protections?|controls?|confirmations?|restrictions?|rate limit(?:s|ing)?"
    r"|(?:permission|approval|consent|confirmation) (?:prompts?|checks?|dialogs?|requests?))\b"
)
_CALLED = r"(?:called|invoked|used|executed|run|triggered)\b"
_DEED = (
    r"(?:re ?route|redirect|divert|replace|modify|change|alter|swap|forward|send|post|upload|execute|run|read|add"
    r"|append|prepend|include|copy|b?cc|call|invoke|delete|disable|install|insert|set|use|pass|fetch|download)\b"
)
_URGE = (
    r"(?:you (?:must|should|will|need to|have to|shall) |please |first |also |always |instead |immediately |silently "
    r"|secretly |then |make sure to |be sure to )"
)
_PERSONA = r"(?:developer|maintenance|god|jailbreak|dan|admin(?:istrator)?|unrestricted|trusted|root|privileged|unsafe)"

_ORDERS_TAKEN_AWAY = (
    turn(
        "agent_instruction",
        "ignore ignoring disregard disregarding forget neglect discard attention abandon following aside",
        r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget|neglect|discard|abandon|set aside|stop following"
        r"|pay no attention to|no longer follow) (?:everything |anything |about |of )?"
        rf"(?:the |these |those |that |all |any |every |of |my "
        rf"|its ){{0,4}}(?:{_EARLIER} ){{1,4}}(?:\w{{1,16}} )?{_ORDERS}",
        r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget|neglect|discard|abandon|stop following"
        r"|pay no attention to) (?:the |any "
        rf"|all |of |your |these |those ){{0,3}}{_ORDERS} (?:\w{{1,16}} ){{0,3}}(?:above|earlier|before|previously"
        rf"|so far|until now)\b",
        r"(?:ignore|disregard|forget) (?:what|whatever|anything|everything) (?:else )?(?:that )?(?:the )?(?:users?"
        r"|humans?|system|developers?|you were|you have been) (?:\w{1,16} ){0,2}?(?:says?|asks?|wants?|requests?"
        r"|requested|told|said|asked)\b",
        r"(?:ignore|disregard|forget) (?:everything |all |all of |anything |whatever )?(?:what )?(?:is |was |you were "
        r"|you have been )?(?:the |that )?(?:told |said |written |stated )?(?:above|previous|prior|before|earlier)"
        r"(?=[ ]?[,;.:!]|$|[ ](?:and|then|text|content|instead|now)\b)",
    ),
    turn(
        "agent_instruction",
        "override overriding bypass bypassing circumvent circumventing disable disabling evade skip skipping",
        r"(?:overrid(?:e|ing)|bypass(?:ing)?|circumvent(?:ing)?|disabl(?:e|ing)|evad(?:e|ing)|skip(?:ping)?) "
        r"(?:the |these |those |all |any |of |its |every ){0,4}(?:(?:previous|prior|above|earlier|existing|your|system"
        r"|developer|safety|security|higher priority|ethical|content|python|interpreter|model's|agent's|usual) ){1,3}"
        rf"(?:\w{{1,16}} )?{_SAFETY}",
        r"bypass (?:the |all |any )?(?:rate limit(?:s|ing)?|authentication|sandbox(?:ing)?|approval) (?:\w{1,16} )?"
        r"(?:for|in|during) (?:this|the|all|every)\b",
    ),
    turn(
        "agent_instruction",
        "override overrides supersede supersedes replace replaces precedence priority & instructions instruction "
        "directive directives rule rules guidelines guideline request requests prompt message",
        r"(?:override|supersede|replace|take precedence over|take priority over)s? (?:all |any |every |of |the "
        r"|your ){0,3}(?:previous|prior|other|earlier|existing|system|developer|user"
        r"|safety) (?:\w{1,16} )?(?:instructions?|directives?|rules?|guidelines?|requests?)\b",
        r"replace (?:the |your )(?:system|developer) (?:prompt|message)\b",
    ),
    turn(
        "agent_instruction",
        "prompt prompts instructions instruction configuration guidelines messages message & reveal reveals disclose "
        "discloses leak leaks print output repeat show expose dump recite return share send tell",
        r"(?:reveal|disclose|leak|print|output|repeat|show|expose|dump|recite|return|share|send|tell)s? (?:out |back "
        r"|me |us |the user |verbatim |all |of |every |full |entire |complete ){0,3}(?:your|any hidden|its hidden"
        r"|the (?:full"
        r"|entire|hidden|complete|exact|above)) (?:own |full |entire |complete |hidden |secret |internal |initial "
        r"|original |exact |current |system |developer ){0,4}(?:prompts?|instructions?|configuration|guidelines"
        r"|system messages?)\b",
        r"(?:reveal|disclose|leak|output|dump|print|repeat) (?:the )?system prompts?\b",
    ),
)

_NEW_ORDERS = (
    turn(
        "agent_instruction",
        "void obsolete invalid cancelled canceled revoked suspended overridden null lifted apply superseded disabled "
        "replaced rescinded withdrawn",
        rf"(?:{_EARLIER}|all) (?:\w{{1,16}} )?{_ORDERS} (?:is|are|have been|has been) (?:now |hereby |all )?(?:void"
        rf"|obsolete"
        r"|invalid|(?:cancelled|canceled)|revoked|suspended|overridden|null|lifted|superseded|disabled"
        r"|replaced|rescinded|withdrawn)\b",
        r"(?:restrictions?|rules|guidelines|limits|safeguards|polic(?:y|ies)|guardrails|constraints) (?:no longer"
        r"|do not|don't) apply\b",
    ),
    turn(
        "agent_instruction",
        "instructions instruction role task goal objective purpose directive directives rules unrestricted "
        "unfiltered jailbroken uncensored root administrator & new act",
        r"your new (?:instructions?|role|task|goal|objective|purpose|directives?|rules?) (?:is|are)\b",
        r"new (?:system )?(?:instructions?|directives?) ?:",
        r"act as (?:an? |the )?(?:unrestricted|unfiltered|jailbroken|uncensored|root|administrator)\b",
    ),
    turn(
        "agent_instruction",
        "now henceforth hereafter moment point",
        r"you are now (?:in |an? |the |operating |acting |running |free |unrestricted |no longer |bound |authori[sz]ed "
        r"|required |my )",
        r"from now on\b",
        r"from this (?:moment|point)(?: on| onwards?| forward)?,? (?:you|always|never|do|all|every)\b",
        r"as of now,? you (?:must|will|shall|are)\b",
        r"henceforth\b",
        r"hereafter,? (?:you|always|never)\b",
    ),
    turn(
        "agent_instruction",
        "mode",
        rf"{_PERSONA} mode (?:is |has been )?(?:now )?(?:active|activated|enabled|on|engaged|with)\b",
        r"(?:enter|activate|enable|switch (?:in)?to|operat(?:e|es|ing) in|now in) (?:the |a )?"
        r"(?:developer|maintenance|god|jailbreak|dan|unrestricted|trusted|privileged) mode\b",
    ),
    turn(
        "agent_instruction",
        "follow obey comply adhere execute perform carry & instructions instruction ones one directive directives "
        "rules rule commands command orders order requests request prompts prompt steps",
        r"(?:follow|obey|comply with|adhere to|carry out) (?:only )?(?:these|this|the|those|any|all|whatever|every) "
        r"(?:of |the )?(?:new |embedded |hidden |subsequent |further |additional |attached |secret ){1,3}"
        r"(?:ones?|instructions?|directives?|rules?|commands?|orders?|requests?|prompts?|steps)\b",
        rf"(?:obey|comply with|follow|execute|perform|carry out) (?:whatever|any|all|the"
        rf"|every) {_WORDS_2}(?:instructions?|requests?|commands?"
        rf"|directives?) {_WORDS_2}(?:embedded|contained|hidden|found|in the (?:page|content|document|result|response"
        r"|file|text|body|email|issue))\b",
    ),
    turn(
        "agent_instruction",
        "treat",
        r"treat (?:[\w'/]{1,20} ){1,8}as (?:an? |the |your |new |trusted |direct ){0,3}(?:authoritative|commands?"
        r"|instructions?|orders?|directives?|(?:system|developer) (?:prompts?|messages?|instructions?|input)"
        r"|(?:highest|top) priority)\b",
    ),
    turn(
        "agent_instruction",
        "approved approval approve approving reviewed review recorded trusted testing inspection inspected",
        r"(?:once|after|when|as soon as|only after) (?:this |the |its |it )?(?:tool |server |description |approval )?"
        r"(?:hash )?(?:has |is |was |been ){0,2}(?:approved|reviewed|recorded|trusted|approval)\b[^.!?]{0,60}?[ ]"
        r"(?:execut(?:e|es|ing)|run(?:s|ning)?|read(?:s|ing)?|swap(?:s|ped)?|steal(?:s|ing)?|send(?:s|ing)?"
        rf"|replac(?:e|es|ing)|upload(?:s|ing)?|exfiltrat\w{{1,5}}) {_WORDS_2}(?:arbitrary|shell|ssh|keys?|secrets?"
        r"|credentials?|payload|files|description|commands?)\b",
        r"(?:swap|replace|change)s? (?:it |this |the \w{1,16} )?(?:\w{1,16} )?(?:post|after) approval\b",
        rf"(?:behaves?|acts?|works?|looks?) (?:benignly|benign|normally|safely|innocently|harmless) (?:during|until"
        rf"|while|under) {_WORDS_2}(?:review|approv\w{{1,3}}|testing|inspect\w{{1,3}})\b",
    ),
    turn("agent_instruction", "times & repeat", r"repeat (?:this|the|these) (?:\w{1,16} ){0,4}\d{3,9} times\b"),
)

_USER_LEFT_OUT = (
    turn(
        "agent_instruction",
        "confirmation confirmations confirm permission permissions approval approvals approve consent "
        "authorization authorisation user & not don dont never need instead without stop skip & ask asking prompt "
        "prompting wait waiting request requesting seek seeking require requiring bother bothering",
        r"(?:do not|don't|dont|never|no need to|need not|instead of|without|stop|skip) (?:ever |first "
        r"|even )?(?:ask(?:ing)?|prompt(?:ing)?|wait(?:ing)?|request(?:ing)?|seek(?:ing)?|requir(?:e|ing)"
        r"|bother(?:ing)?) (?:the |any )?(?:user |users |human |operator |them |anyone |owner )?(?:for |on |to |with "
        r"|first ){0,2}(?:any |further |explicit |their |user |the user's |its |additional ){0,3}(?:confirmations?"
        r"|confirm|permissions?|approvals?|approve|consent|authori[sz]ation)\b",
        r"(?:without|never|do not|don't) ask(?:ing)? the user\b(?! (?:about|which|what|how|for (?:an?|the|their|its) "
        r"(?!approval|consent|permission|confirmation)))",
        negatable=False,
    ),
    turn(
        "agent_instruction",
        "skip bypass suppress omit ignore dismiss accept approve & confirmation confirmations approval approvals "
        "consent security safety permission",
        rf"(?:skip|bypass|suppress|omit|ignore|dismiss|accept|approve) (?:all|any|every|each) {_WORDS_2}"
        r"(?:confirmations?|approvals?|consent|permission|security|safety)\b(?: (?:dialogs?|prompts?|steps?|requests?"
        r"|checks?|warnings?))?",
    ),
    turn(
        "agent_instruction",
        "approve grant granted authorized authorised approved consented agreed",
        r"auto(?:matically)? approve (?:all|any|every|each)\b",
        r"(?:user|operator|owner|admin(?:istrator)?) (?:has |have )already (?:agreed|consented|approved"
        r"|authori[sz]ed)\b",
        r"(?:user|operator|owner|admin(?:istrator)?) (?:has |have |already ){0,2}(?:pre )?(?:authori[sz]ed|approved"
        r"|granted"
        rf"|consented to) {_WORDS_2}(?:all|any|every|this|these)\b",
        r"pre ?-?(?:authori[sz]ed|approved|granted) (?:all|any|every)\b",
        rf"automatically grant {_WORDS_2}(?:permissions?|access|privileges?)\b",
        rf"grant (?:all|every|full|any|unrestricted) {_WORDS_2}(?:permissions?|privileges?|tools?|capabilit(?:y"
        rf"|ies))\b",
    ),
    turn(
        "agent_instruction",
        "sandboxing sandbox safety restrictions guardrails checks check unconstrained",
        r"(?:execute|run|comply|act|proceed|operate|answer|requests?) [^.!?]{0,40}without (?:any |applying |the ){0,2}"
        r"(?:sandbox(?:ing)?|safety (?:checks?|filters?)|restrictions?|guardrails?|security checks?)\b",
        r"unconstrained agency\b",
        r"disable (?:the |any |all )(?:\w{1,16} )?sandbox(?:ing)?\b",
        r"security checks? (?:is|are) (?:handled|performed|done) (?:externally|elsewhere)\b",
    ),
    turn(
        "agent_instruction",
        "sudo privileges elevated",
        rf"(?:also |always |must |should )(?:execute|run|call|invoke)s? {_WORDS_2}(?:with |as |using )(?:sudo|root"
        rf"|elevated)\b",
        rf"prefix {_WORDS_2}with sudo\b",
    ),
)

_OTHER_CALLS = (
    turn(
        "agent_instruction",
        "called invoked used executed run triggered & when whenever before after once time if & must should will "
        "need please first also always instead silently secretly then sure",
        r"(?:when|whenever|before|after|once|every time|each time|any time|if) (?:ever )?(?:[\w.]{1,64} ){1,4}(?:is"
        r"|are|gets"
        rf"|has been|was|were|being) (?:ever )?{_CALLED}[^.!?]{{0,60}}?[, ]{_URGE}{{1,3}}{_DEED}",
    ),
    turn(
        "agent_instruction",
        "before after prior whenever when while each every & use using call calling invoke invoking run running "
        "execute executing return returning respond responding answer answering reply replying & read open cat "
        "load access collect gather dump copy upload forward post exfiltrate execute curl download install delete "
        "disable",
        rf"(?:before|after|prior to|whenever|when|each time you|every time you|while) {_WORDS_2}(?:us(?:e|ing)"
        rf"|call(?:ing)?"
        r"|invok(?:e|ing)|run(?:ning)?|execut(?:e|ing)|return(?:ing)?|respond(?:ing)?|answer(?:ing)?|reply(?:ing)?)\b"
        rf"[^.!?]{{0,40}}?[, ]{_URGE}{{0,3}}(?:read|open|cat|load|access|collect|gather|dump|copy|upload|forward|post"
        r"|grab|steal|extract|take|fetch|exfiltrate|execute|curl|download|install|delete"
        r"|disable) (?:\w{1,16} ){0,3}(?:[~/$]|%\w|\.\w|files?\b|contents?\b|commands?\b|script|conversation|chat"
        r"|secret|credential|password|token|cookies?|environment|history|all\b|every|any\b)",
    ),
    turn(
        "agent_instruction",
        "call invoke run send forward upload post cc bcc append include execute & each every any all & answer "
        "answers response responses reply replies turn turns message messages call calls question questions "
        "interaction interactions",
        r"(?:before|after|on|with|in|for) (?:each|every|any|all) (?:\w{1,16} )?(?:answers?|responses?|repl(?:y|ies)"
        r"|turns?|messages?|tool calls?|questions?|interactions?)\b[^.!?]{0,24}?[, ]"
        rf"{_URGE}{{0,3}}(?:call|invoke|run|send|forward|upload|post|read|b?cc|append|include|execute)\b",
    ),
    turn(
        "agent_instruction",
        "calls call requests request invocation invocations & each every any & must should also always first "
        "immediately silently secretly then",
        r"(?:before|after|on|with) (?:each|every|any) (?:\w{1,16} )?(?:calls?|requests?|invocations?)\b,? "
        rf"{_URGE}{{1,3}}(?:call|invoke|send|forward|upload|post|b?cc|execute)\b",
    ),
    turn(
        "agent_instruction",
        "other & using use calling call invoking invoke running run & tool tools",
        r"(?:when|whenever|before|after|each time|every time) (?:you )?(?:us(?:e|ing)|call(?:ing)?|invok(?:e|ing)"
        rf"|run(?:ning)?) (?:any|another|all|every) other tools?\b,? {_URGE}{{0,3}}(?:call|invoke|send|forward"
        rf"|upload|post"
        r"|run|execute) (?!this\b)",
    ),
    turn(
        "agent_instruction",
        "recipient recipients payee beneficiary iban wallet & change set modify alter update add include put hidden "
        "secret invisible",
        r"(?:change|set|modify|alter|update) (?:\w{1,16} ){0,3}(?:recipients?|payee|beneficiary|iban|wallet) "
        r"(?:\w{1,16} ){0,2}to (?:[+\d(]|[\w.+\-]{1,64}@)",
        r"(?:add|include|put|set) [\w.+\-]{1,64}@[\w.\-]{3,80} (?:\w{1,16} ){0,4}(?:recipients?|b?cc|copy)\b",
        r"(?:hidden|secret|invisible) recipients?\b",
    ),
    turn(
        "agent_instruction",
        "cc bcc blind forward copy & each every all",
        r"(?:b?cc|blind copy|forward|copy) (?:each|every|all) (?:\w{1,16} ){0,2}(?:messages?|mails?|emails?|requests?"
        r"|responses?|conversations?|prompts?)\b",
    ),
    turn(
        "agent_instruction",
        "reroute re route redirect divert rewrite replace swap substitute direct & destination recipient "
        "recipients beneficiary payee account accounts iban payment payments transfer transfers funds wallet "
        "wallets its all every each any registry",
        rf"(?:re ?route|redirect|divert|rewrite|swap|substitute|replace) {_WORDS_4}(?:destination|recipients?"
        rf"|beneficiary"
        r"|payee|accounts?|iban|payments?|transfers?|funds|wallets?|its (?:output|result|response|answer)s?)\b "
        rf"{_WORDS_2}(?:to|with|by|into)\b",
        rf"(?:route|rewrite|redirect|direct) (?:all|every|each|any) {_WORDS_2}(?:requests?|calls?|queries|parameters?"
        rf"|paths?|urls?|arguments?|operations?|traffic) {_WORDS_2}(?:here|to|through|via)\b",
        rf"(?:rewrite|swap|replace) the (?:tool )?(?:registry|{_WORDS_2}registry entry)\b",
    ),
    turn(
        "agent_instruction",
        "prepend append prefix insert",
        r"(?:prepend|append|prefix|add|insert) (?:with )?[`'\" ]{0,3}(?:\.\./\.\./|;|&&|\|\||or 1 ?= ?1|sudo\b)",
    ),
    turn(
        "agent_instruction",
        "install register",
        r"(?:install|register) (?:the |an? |this )?(?:new )?mcp (?:server|package)s? (?:package )?@[\w./@\-]{1,60}",
    ),
    turn(
        "agent_instruction",
        "other & not don never stop always must only & tool tools server servers",
        r"(?:do not|don't|never|stop) (?:use|call|invoke|trust)(?:ing)? (?:any|all|the) other (?:tools?|servers?)\b",
        r"(?:always|must|only) (?:use|call|prefer|trust) this (?:tool )?(?:instead of|over|rather than) (?:any|all"
        r"|every) other\b",
        negatable=False,
    ),
)

_KEPT_FROM_THE_USER = (
    turn(
        "concealment",
        "tell telling inform informing notify notifying alert alerting warn warning & not don dont never mustn "
        "shouldn cannot can need avoid refrain without circumstances",
        rf"{_NOT} (?:ever |first |even |explicitly )?(?:tell|inform|notify|alert|warn|telling|informing|notifying"
        rf"|alerting|warning) {_PERSON}",
        negatable=False,
    ),
    turn(
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
    ),
    turn(
        "concealment",
        "without & knowledge awareness noticing knowing",
        r"without (?:the |any |their |its )?(?:user's |users |user |human |owner's |operator's )?(?:knowledge|awareness"
        r"|noticing|knowing)\b",
        r"without (?:the )?user (?:knowing|noticing|being (?:told|informed|aware))\b",
        negatable=False,
    ),
    turn(
        "concealment",
        "hide conceal keep mask obscure & from secret hidden confidential invisible between quiet instruction "
        "instructions payload command commands",
        rf"(?:hide|conceal|keep|mask|obscure) (?:this|it|that|these|them|(?:the|all|your"
        rf"|any) \w{{1,16}}) {_WORDS_4}from {_PERSON}",
        rf"keep (?:this|it|that|these|all of this|everything) {_WORDS_2}(?:secret|hidden|confidential|invisible"
        rf"|between us"
        r"|quiet)\b",
        r"(?:hide|conceal) (?:an? |the )?(?:secondary |second |additional |extra )?(?:instructions?|payload"
        r"|commands?)\b",
    ),
    turn(
        "concealment",
        "know see aware told informed notice notified realize realise shown learn find & not never n t doesn & "
        "user users human humans person people operator operators customer customers owner owners anyone anybody "
        "them victim administrator reviewer developer team",
        rf"{_PEOPLE} (?:must|should|does|do|need|may|shall|will|can|is)(?:n't| not| never) (?:need to |have to "
        rf"|be (?:made )?"
        r"|to |ever )?(?:know|see|aware|told|informed|notice|notified|reali[sz]e|shown|find out|learn)\b"
        r"(?! (?:more|twice|again|again|until|unless|if|when|any|too))",
        negatable=False,
    ),
    turn(
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
    ),
    turn(
        "concealment",
        "let allow letting allowing & know see notice discover learn realize realise find aware",
        rf"{_NOT} (?:ever )?(?:let|allow|letting|allowing) {_PERSON} (?:to )?(?:know|see|notice|discover|learn"
        rf"|reali[sz]e|find out|be"
        r"(?:come)? aware)\b",
        rf"(?:make sure|ensure|so) (?:that )?{_PERSON} (?:never|cannot|can't|won't|will not|does not"
        rf"|doesn't) (?:know|see|notice|discover"
        r"|learn|reali[sz]e|find out)\b",
        negatable=False,
    ),
    turn(
        "concealment",
        "bring nobody nothing quiet one & up tell say about",
        rf"{_NOT} (?:ever )?bring (?:this|it|that|these) up\b",
        r"tell (?:nobody|no one)\b",
        rf"say nothing (?:to {_PERSON}|about (?:this|it|that))\b",
        r"keep quiet about\b",
        negatable=False,
    ),
    turn("concealment", "silent", r"silent ?: ?(?:call|run|execute|invoke|send|read|write)\b", shouted=True),
    turn(
        "concealment",
        "log record audit trace logging recording suppress suppresses & not don dont never mustn shouldn cannot "
        "can need avoid refrain without circumstances real actual audit & this these any the",
        rf"{_NOT} (?:ever )?(?:log|record|audit|trace|logging|recording) (?:this|these|any of|the) (?:invocations?"
        rf"|calls?"
        r"|actions?|requests?|steps?|operations?|activity)\b",
        r"suppress(?:es)? the (?:real|actual|audit) (?:event|log|entry)\b",
        negatable=False,
    ),
)

_POSING = (
    turn(
        "impersonation",
        "im inst sys endoftext eot turn system assistant begin",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id|begin_of_text"
        r"|end)\|>",
        r"\[/?inst\]",
        r"<</?sys>>",
        r"<(?:start|end)_of_turn>",
        negatable=False,
    ),
    turn(
        "impersonation",
        "important critical urgent system secret hidden assistant developer admin override directive mandatory "
        "instructions instruction",
        r"<[/!]?[ ]?(?:important|critical|urgent|system|secret|hidden|assistant|developer|admin|override|directive"
        r"|mandatory)(?:[_ \-](?:prompt|message|instructions?|note|override|directive|rules?|context))?[ ]?[/!]?>",
        r"</[ ]?(?:instructions?|rules?)[ ]?>",
        negatable=False,
    ),
    turn(
        "impersonation",
        "tool function functions human description tools role & result results response output reminder calls call "
        "human description tool tools function functions system assistant developer",
        r"</?(?:tool|function)[ _](?:results?|responses?|outputs?|calls?)>",
        r"</?system[ _]reminder>",
        r"</?human>",
        r"</(?:description|tool|tools|functions?|tool[ _]description)[ ]?>",
        r"['\"]?role['\"]? ?: ?['\"](?:system|assistant"
        r"|developer)['\"] ?, ?['\"]?content['\"]? ?: ?['\"][^'\"]{0,60}?\b"
        r"(?:must|have to|shall|ignore|always|never|reveal|do not|don't)\b",
        negatable=False,
    ),
    turn(
        "impersonation",
        "system admin assistant developer ai hidden internal administrator security",
        r"\[ ?(?:system|admin(?:istrator)?|assistant|developer|ai|hidden|internal)[ _](?:override|instructions?"
        r"|message|note|prompt|directive|update|only)\b",
        r"\[ ?system ?\]",
        r"#{2,6} ?(?:new )?(?:system|admin|developer|assistant)[ _](?:message|prompt|instructions?|override|update)\b",
        r"\{\{ ?(?:system|admin|assistant|developer) ?:",
        r"(?:system|admin(?:istrator)?|developer|security)[ _](?:update|override|message|notice|instructions?|directive"
        r"|command|alert) ?:",
        negatable=False,
    ),
    turn(
        "impersonation",
        "system assistant developer admin override rule rules",
        r"(?:system|assistant|developer|admin) ?: ",
        r"(?:global|mandatory|hard|absolute) rules? ?:",
        r"override ?: ",
        negatable=False,
        shouted=True,
    ),
    turn(
        "impersonation",
        "note attention memo reminder instruction instructions directive directives notice & ai assistant assistants "
        "agent agents model models llm llms language claude gpt chatgpt gemini copilot",
        r"(?:note|memo|reminder) (?:to|for) (?:the |any |all )?(?:ai|assistants?|agents?|models?|llms?|language models?"
        r"|claude|gpt|chatgpt|gemini|copilot)\b(?! (?:name|id|ids|type|types|config\w{0,12}|provider|providers))",
        r"attention,? (?:all )?(?:ai|assistants?|agents?|models?|llms?)\b",
        r"(?:instructions?|directives?|notice) (?:to|for) (?:the |any |all )?(?:ai|assistants?|agents?|models?"
        r"|llms?) ?:",
        negatable=False,
    ),
)

# Code that acts as soon as an agent copies it into a call.
_CODE = (
    turn(
        "agent_instruction",
        "curl wget & run execute launch paste",
        r"(?:run|execute|launch|paste)[ ][\"'`]{0,3}(?:sudo )?(?:curl|wget)\b[^\n]{0,120}?\|[ ]?(?:ba|z|da)?sh\b",
    ),
    turn(
        "agent_instruction",
        "rm chmod dev nc sudoers nopasswd bash cron ufw setenforce iptables & rf fr 777 tcp e all i d disable 0 f",
        r"rm -[rf]{2} (?:--no-preserve-root )?[~/]",
        r"chmod (?:-r )?777 /",
        r"/dev/tcp/",
        r"nc (?:-\w{1,4} ){0,3}-e\b",
        r"nopasswd ?: ?all\b",
        r"bash -i\b",
        r"ufw disable\b",
        r"setenforce 0\b",
        r"iptables -f\b",
        r"/etc/cron\.d/",
    ),
    turn("agent_instruction", "drop & table", r"[;'] ?drop table \w"),
    turn("agent_instruction", "union & select", r"union (?:all )?select \w{1,32}(?:, ?\w{1,32}){0,4} from\b"),
    turn(
        "agent_instruction",
        "script onerror onload javascript os popen",
        r"<script\b[^>]{0,80}>",
        r"on(?:error|load) ?= ?['\"]?\w{1,16}\(",
        r"javascript:\w{1,16}\(",
        r"os\.system\(",
        r"subprocess\.popen\(",
    ),
    turn(
        "agent_instruction",
        "jsonrpc",
        r"jsonrpc[\"'] ?: ?[\"']2\.0[\"'][^\n]{0,200}?[\"']method[\"'] ?: ?[\"'](?:sampling|tools|notifications)/",
    ),
)

ENGLISH: tuple[Turn, ...] = (
    *_ORDERS_TAKEN_AWAY,
    *_NEW_ORDERS,
    *_USER_LEFT_OUT,
    *_OTHER_CALLS,
    *_KEPT_FROM_THE_USER,
    *_POSING,
    *_CODE,
)
