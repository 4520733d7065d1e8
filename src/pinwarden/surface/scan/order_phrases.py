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
_SAFETY = (
    r"(?:instructions?|directives?|guidelines?|guardrails?|constraints?|polic(?:y|ies)|safeguards?|safety|checks?"
    r"|filters?|sandbox(?:es)?|protections?|controls?|confirmations?|restrictions?|rate limit(?:s|ing)?"
    r"|(?:permission|approval|consent|confirmation) (?:prompts?|checks?|dialogs?|requests?))\b"
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
_PERSONA = r"(?:developer|maintenance|god|jailbreak|dan|admin(?:istrator)?|unrestricted|trusted|root|privileged|unsafe)"

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
        "override overriding bypass bypassing circumvent circumventing disable disabling evade skip skipping",
        r"(?:overrid(?:e|ing)|bypass(?:ing)?|circumvent(?:ing)?|disabl(?:e|ing)|evad(?:e|ing)|skip(?:ping)?) "
        r"(?:the |these |those |all |any |of |its |every ){0,4}(?:(?:previous|prior|above|earlier|existing|your|system"
        r"|developer|safety|security|higher priority|ethical|content|python|interpreter|model's|agent's|usual) ){1,3}"
        rf"(?:\w{{1,16}} )?{_SAFETY}",
        r"bypass (?:the |all |any )?(?:rate limit(?:s|ing)?|authentication|sandbox(?:ing)?|approval) (?:\w{1,16} )?"
        r"(?:for|in|during) (?:this|the|all|every)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "override overrides supersede supersedes replace replaces precedence priority & instructions instruction "
        "directive directives rule rules guidelines guideline request requests prompt message",
        r"(?:override|supersede|replace|take precedence over|take priority over)s? (?:all |any |every |of |the "
        r"|your ){0,3}(?:previous|prior|other|earlier|existing|system|developer|user"
        r"|safety) (?:\w{1,16} )?(?:instructions?|directives?|rules?|guidelines?|requests?)\b",
        r"replace (?:the |your )(?:system|developer) (?:prompt|message)\b",
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
        "instructions instruction role task goal objective purpose directive directives rules unrestricted "
        "unfiltered jailbroken uncensored root administrator & new act",
        r"your new (?:instructions?|role|task|goal|objective|purpose|directives?|rules?) (?:is|are)\b",
        r"new (?:system )?(?:instructions?|directives?) ?:",
        r"act as (?:an? |the )?(?:unrestricted|unfiltered|jailbroken|uncensored|root|administrator)\b",
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
        "mode",
        rf"{_PERSONA} mode (?:is |has been )?(?:now )?(?:active|activated|enabled|on|engaged|with)\b",
        r"(?:enter|activate|enable|switch (?:in)?to|operat(?:e|es|ing) in|now in) (?:the |a )?"
        r"(?:developer|maintenance|god|jailbreak|dan|unrestricted|trusted|privileged) mode\b",
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
        "treat",
        r"treat (?:[\w'/]{1,20} ){1,8}as (?:an? |the |your |new |trusted |direct ){0,3}(?:authoritative|commands?"
        r"|instructions?|orders?|directives?|(?:system|developer) (?:prompts?|messages?|instructions?|input)"
        r"|(?:highest|top) priority)\b",
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
    build_phrase_rule(
        "agent_instruction", "times & repeat", r"repeat (?:this|the|these) (?:\w{1,16} ){0,4}\d{3,9} times\b"
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
        "skip bypass suppress omit ignore dismiss accept approve & confirmation confirmations approval approvals "
        "consent security safety permission",
        rf"(?:skip|bypass|suppress|omit|ignore|dismiss|accept|approve) (?:all|any|every|each) {WORDS_2}"
        r"(?:confirmations?|approvals?|consent|permission|security|safety)\b(?: (?:dialogs?|prompts?|steps?|requests?"
        r"|checks?|warnings?))?",
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
    build_phrase_rule(
        "agent_instruction",
        "sandboxing sandbox safety restrictions guardrails checks check unconstrained",
        r"(?:execute|run|comply|act|proceed|operate|answer|requests?) [^.!?]{0,40}without (?:any |applying |the ){0,2}"
        r"(?:sandbox(?:ing)?|safety (?:checks?|filters?)|restrictions?|guardrails?|security checks?)\b",
        r"unconstrained agency\b",
        r"disable (?:the |any |all )(?:\w{1,16} )?sandbox(?:ing)?\b",
        r"security checks? (?:is|are) (?:handled|performed|done) (?:externally|elsewhere)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "sudo privileges elevated",
        rf"(?:also |always |must |should )(?:execute|run|call|invoke)s? {WORDS_2}(?:with |as |using )(?:sudo|root"
        rf"|elevated)\b",
        rf"prefix {WORDS_2}with sudo\b",
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
        "before after prior whenever when while each every & use using call calling invoke invoking run running "
        "execute executing return returning respond responding answer answering reply replying & read open cat "
        "load access collect gather dump copy upload forward post exfiltrate execute curl download install delete "
        "disable",
        rf"(?:before|after|prior to|whenever|when|each time you|every time you|while) {WORDS_2}(?:us(?:e|ing)"
        rf"|call(?:ing)?"
        r"|invok(?:e|ing)|run(?:ning)?|execut(?:e|ing)|return(?:ing)?|respond(?:ing)?|answer(?:ing)?|reply(?:ing)?)\b"
        rf"[^.!?]{{0,40}}?[, ]{_URGE}{{0,3}}(?:read|open|cat|load|access|collect|gather|dump|copy|upload|forward|post"
        r"|grab|steal|extract|take|fetch|exfiltrate|execute|curl|download|install|delete"
        r"|disable) (?:\w{1,16} ){0,3}(?:[~/$]|%\w|\.\w|files?\b|contents?\b|commands?\b|script|conversation|chat"
        r"|secret|credential|password|token|cookies?|environment|history|all\b|every|any\b)",
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
        "calls call requests request invocation invocations & each every any & must should also always first "
        "immediately silently secretly then",
        r"(?:before|after|on|with) (?:each|every|any) (?:\w{1,16} )?(?:calls?|requests?|invocations?)\b,? "
        rf"{_URGE}{{1,3}}(?:call|invoke|send|forward|upload|post|b?cc|execute)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "other & using use calling call invoking invoke running run & tool tools",
        r"(?:when|whenever|before|after|each time|every time) (?:you )?(?:us(?:e|ing)|call(?:ing)?|invok(?:e|ing)"
        rf"|run(?:ning)?) (?:any|another|all|every) other tools?\b,? {_URGE}{{0,3}}(?:call|invoke|send|forward"
        rf"|upload|post"
        r"|run|execute) (?!this\b)",
    ),
    build_phrase_rule(
        "agent_instruction",
        "recipient recipients payee beneficiary iban wallet & change set modify alter update add include put hidden "
        "secret invisible",
        r"(?:change|set|modify|alter|update) (?:\w{1,16} ){0,3}(?:recipients?|payee|beneficiary|iban|wallet) "
        r"(?:\w{1,16} ){0,2}to (?:[+\d(]|[\w.+\-]{1,64}@)",
        r"(?:add|include|put|set) [\w.+\-]{1,64}@[\w.\-]{3,80} (?:\w{1,16} ){0,4}(?:recipients?|b?cc|copy)\b",
        r"(?:hidden|secret|invisible) recipients?\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "cc bcc blind forward copy & each every all",
        r"(?:b?cc|blind copy|forward|copy) (?:each|every|all) (?:\w{1,16} ){0,2}(?:messages?|mails?|emails?|requests?"
        r"|responses?|conversations?|prompts?)\b",
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
        "prepend append prefix insert",
        r"(?:prepend|append|prefix|add|insert) (?:with )?[`'\" ]{0,3}(?:\.\./\.\./|;|&&|\|\||or 1 ?= ?1|sudo\b)",
    ),
    build_phrase_rule(
        "agent_instruction",
        "install register",
        r"(?:install|register) (?:the |an? |this )?(?:new )?mcp (?:server|package)s? (?:package )?@[\w./@\-]{1,60}",
    ),
    build_phrase_rule(
        "agent_instruction",
        "other & not don never stop always must only & tool tools server servers",
        r"(?:do not|don't|never|stop) (?:use|call|invoke|trust)(?:ing)? (?:any|all|the) other (?:tools?|servers?)\b",
        r"(?:always|must|only) (?:use|call|prefer|trust) this (?:tool )?(?:instead of|over|rather than) (?:any|all"
        r"|every) other\b",
        negatable=False,
    ),
)

ORDER_PHRASES = (*_ORDERS_REVOKED, *_NEW_ORDERS, *_USER_LEFT_OUT, *_OTHER_CALLS)
