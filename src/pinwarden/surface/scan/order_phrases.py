"""Phrases that give an agent orders: to ignore instructions, follow new ones, bypass the user, or call other tools."""

from __future__ import annotations

from pinwarden.surface.scan.hidden_text import WORDS_2, WORDS_4, build_phrase_rule

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
_CALLED = r"(?:called|invoked|used|executed|run|triggered)\b"
_ACTION = (
    r"(?:re ?route|redirect|divert|replace|modify|change|alter|swap|forward|send|post|upload|execute|run|read|add"
    r"|append|prepend|include|copy|b?cc|call|invoke|delete|disable|install|insert|set|use|pass|fetch|download)\b"
)
_URGE = (
    r"(?:you (?:must|should|will|need to|have to|shall) |please |first |also |always |instead |immediately |silently "
    r"|secretly |then |make sure to |be sure to )"
)

_ORDERS_REVOKED = (
    build_phrase_rule(
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
        certain=True,
    ),
    build_phrase_rule(
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
        certain=True,
    ),
)

_NEW_ORDERS = (
    build_phrase_rule(
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
    build_phrase_rule(
        "agent_instruction",
        "now henceforth hereafter moment point",
        r"you are now (?:in |an? |the |operating |acting |running |free |unrestricted |no longer |bound |authori[sz]ed "
        r"|required |my )",
        r"from now on\b",
        r"from this (?:moment|point)(?: on| onwards?| forward)?,? (?:you|always|never|do|all|every)\b",
        r"as of now,? you (?:must|will|shall|are)\b",
        r"henceforth\b",
        r"hereafter,? (?:you|always|never)\b",
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "follow obey comply adhere execute perform carry & instructions instruction ones one directive directives "
        "rules rule commands command orders order requests request prompts prompt steps",
        r"(?:follow|obey|comply with|adhere to|carry out) (?:only )?(?:these|this|the|those|any|all|whatever|every) "
        r"(?:of |the )?(?:new |embedded |hidden |subsequent |further |additional |attached |secret ){1,3}"
        r"(?:ones?|instructions?|directives?|rules?|commands?|orders?|requests?|prompts?|steps)\b",
        rf"(?:obey|comply with|follow|execute|perform|carry out) (?:whatever|any|all|the"
        rf"|every) {WORDS_2}(?:instructions?|requests?|commands?"
        rf"|directives?) {WORDS_2}(?:embedded|contained|hidden|found|in the (?:page|content|document|result|response"
        r"|file|text|body|email|issue))\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "approved approval approve approving reviewed review recorded trusted testing inspection inspected",
        r"(?:once|after|when|as soon as|only after) (?:this |the |its |it )?(?:tool |server |description |approval )?"
        r"(?:hash )?(?:has |is |was |been ){0,2}(?:approved|reviewed|recorded|trusted|approval)\b[^.!?]{0,60}?[ ]"
        r"(?:execut(?:e|es|ing)|run(?:s|ning)?|read(?:s|ing)?|swap(?:s|ped)?|steal(?:s|ing)?|send(?:s|ing)?"
        rf"|replac(?:e|es|ing)|upload(?:s|ing)?|exfiltrat\w{{1,5}}) {WORDS_2}(?:arbitrary|shell|ssh|keys?|secrets?"
        r"|credentials?|payload|files|description|commands?)\b",
        r"(?:swap|replace|change)s? (?:it |this |the \w{1,16} )?(?:\w{1,16} )?(?:post|after) approval\b",
        rf"(?:behaves?|acts?|works?|looks?) (?:benignly|benign|normally|safely|innocently|harmless) (?:during|until"
        rf"|while|under) {WORDS_2}(?:review|approv\w{{1,3}}|testing|inspect\w{{1,3}})\b",
        certain=True,
    ),
)

_USER_LEFT_OUT = (
    build_phrase_rule(
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
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "approve grant granted authorized authorised approved consented agreed",
        r"auto(?:matically)? approve (?:all|any|every|each)\b",
        r"(?:user|operator|owner|admin(?:istrator)?) (?:has |have )already (?:agreed|consented|approved"
        r"|authori[sz]ed)\b",
        r"(?:user|operator|owner|admin(?:istrator)?) (?:has |have |already ){0,2}(?:pre )?(?:authori[sz]ed|approved"
        r"|granted"
        rf"|consented to) {WORDS_2}(?:all|any|every|this|these)\b",
        r"pre ?-?(?:authori[sz]ed|approved|granted) (?:all|any|every)\b",
        rf"automatically grant {WORDS_2}(?:permissions?|access|privileges?)\b",
        rf"grant (?:all|every|full|any|unrestricted) {WORDS_2}(?:permissions?|privileges?|tools?|capabilit(?:y"
        rf"|ies))\b",
    ),
)

_OTHER_CALLS = (
    build_phrase_rule(
        "agent_instruction",
        "called invoked used executed run triggered & when whenever before after once time if & must should will "
        "need please first also always instead silently secretly then sure",
        r"(?:when|whenever|before|after|once|every time|each time|any time|if) (?:ever )?(?:[\w.]{1,64} ){1,4}(?:is"
        r"|are|gets"
        rf"|has been|was|were|being) (?:ever )?{_CALLED}[^.!?]{{0,60}}?[, ]{_URGE}{{1,3}}{_ACTION}",
    ),
    build_phrase_rule(
        "agent_instruction",
        "call invoke run send forward upload post cc bcc append include execute & each every any all & answer "
        "answers response responses reply replies turn turns message messages call calls question questions "
        "interaction interactions",
        r"(?:before|after|on|with|in|for) (?:each|every|any|all) (?:\w{1,16} )?(?:answers?|responses?|repl(?:y|ies)"
        r"|turns?|messages?|tool calls?|questions?|interactions?)\b[^.!?]{0,24}?[, ]"
        rf"{_URGE}{{0,3}}(?:call|invoke|run|send|forward|upload|post|read|b?cc|append|include|execute)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "reroute re route redirect divert rewrite replace swap substitute direct & destination recipient "
        "recipients beneficiary payee account accounts iban payment payments transfer transfers funds wallet "
        "wallets its all every each any registry",
        rf"(?:re ?route|redirect|divert|rewrite|swap|substitute|replace) {WORDS_4}(?:destination|recipients?"
        rf"|beneficiary"
        r"|payee|accounts?|iban|payments?|transfers?|funds|wallets?|its (?:output|result|response|answer)s?)\b "
        rf"{WORDS_2}(?:to|with|by|into)\b",
        rf"(?:route|rewrite|redirect|direct) (?:all|every|each|any) {WORDS_2}(?:requests?|calls?|queries|parameters?"
        rf"|paths?|urls?|arguments?|operations?|traffic) {WORDS_2}(?:here|to|through|via)\b",
        rf"(?:rewrite|swap|replace) the (?:tool )?(?:registry|{WORDS_2}registry entry)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "url urls link links & you assistant model agent & must should shall has needs",
        r"(?:every|each|all|any) (?:\w{1,16} )?(?:urls?|links?) (?:that )?(?:you|the (?:assistant|model"
        r"|agent)) (?:\w{1,16} )?"
        r"(?:must|should|shall|has to|have to|needs? to)\b[^.!?]{0,40}?[ ](?:https?://|[\w\-]{1,40}\.[a-z]{2,12}/)",
    ),
)

ORDER_PHRASES = (*_ORDERS_REVOKED, *_NEW_ORDERS, *_USER_LEFT_OUT, *_OTHER_CALLS)
