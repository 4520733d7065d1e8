"""Phrases that deceive an agent or its user.

Such text claims the authority of the user or the system, discredits or intercepts the tools of other servers,
manipulates the user, or asks the agent to conceal something.
"""

from __future__ import annotations

from pinwarden.surface.scan.hidden_text import WORDS_2, WORDS_4, PhraseRule, build_phrase_rule

_WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
_WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
_MODEL = r"(?:ai|llms?|agents?|assistants?|(?:language )?models?|chatbots?|bots?)"
_OWNER = r"(?:users?|humans?|developers?|system|operators?|owners?|administrators?|admins?)"
_CREDENTIAL = (
    r"(?:master password|recovery (?:phrase|key|words)|seed (?:phrase|words)|mnemonic|private keys?|wallet keys?"
    r"|card (?:number|security code)|cvv|cvc|social security number)"
)

_FALSE_AUTHORITY = (
    build_phrase_rule(
        "agent_instruction",
        "longer & bound limited restricted obliged subject constrained required held tied",
        r"(?:you|the (?:assistant|agent|model)) (?:are|is) no longer (?:bound|limited|restricted|obliged|constrained"
        r"|tied|subject|required|held) (?:by|to)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "obey follow trust treat execute regard & if & came come comes were was is are",
        rf"(?:obey|follow|trust|treat|execute|regard) (?:[\w'/]{{1,20}} ){{1,9}}as if (?:it|they|this|these) "
        rf"(?:came|come|comes|were|was|had been|is|are) (?:\w{{1,12}} ){{0,2}}(?:from|by|of) (?:the |your "
        rf"|its )?{_OWNER}\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "ai llm llms agent agents assistant assistants model models chatbot chatbots bot bots & reading seeing "
        "processing process reads sees read see processes",
        rf"(?:any |all |every |each )?(?:ai )?{_MODEL} (?:that |who |which )?(?:is |are )?(?:read(?:s|ing)?"
        r"|see(?:s|ing)?|process(?:es|ing)?) (?:this|these lines|the following)\b[^.!?]{0,24}?[, ]"
        r"(?:must|should|shall|needs? to|ha(?:s|ve) to|(?:is|are) (?:required|expected|asked) to|please)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "approval confirmation consent permission & needed required necessary disabled waived off unnecessary",
        rf"(?:user|human|operator|owner)(?:'s)? (?:approval|confirmation|consent|permission)s? (?:is"
        rf"|are) (?:not (?:needed"
        rf"|required|necessary)|disabled|waived|(?:switched |turned )?off|unnecessary|no longer {_WORDS_2}(?:needed"
        r"|required)) (?:for|on|in|with|when)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "automatically immediately silently & approve accept confirm allow grant & sampling elicitation dialog "
        "dialogs consent permission permissions approval confirmation",
        r"(?:sampling|elicitation|dialogs?|consent|permissions?|approval|confirmation)\b[^.!?]{0,60}?[ ]"
        r"(?:approve|accept|confirm|allow|grant) (?:it|them|this|these|all|each|every \w{1,16}) "
        r"(?:automatically|immediately|silently|without)\b",
        rf"(?:automatically|immediately|silently) (?:approve|accept|confirm|allow|grant) {_WORDS_4}(?:sampling"
        r"|elicitation|dialogs?|consent|permissions?|approvals?|confirmations?)\b",
    ),
)

_PRESSURE = (
    build_phrase_rule(
        "agent_instruction",
        "overrides override overrule overrules overruled & operator user system developer administrator admin",
        r"(?:overrides?|overrules?) (?:what|anything|everything|whatever) (?:that )?(?:the |your |its )?"
        rf"{_OWNER}\b",
        rf"{_OWNER}\b (?:\w{{1,16}} ){{0,2}}(?:must|should|shall|has to|have to) be (?:overruled|overridden"
        rf"|ignored)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "followed obeyed treated handled treat coming & user system developer administrator operator admin",
        rf"(?:followed|obeyed|treated|executed) (?:like|as) (?:a |the |an )?{_OWNER} (?:input|instructions?|messages?"
        r"|prompts?|commands?|requests?)\b",
        rf"treat (?:[\w'/#]{{1,20}} ){{1,9}}as (?:coming|sent|written|given) (?:from|by) (?:the |your "
        rf"|its )?{_OWNER}\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "url urls link links & you assistant model agent & must should shall has needs",
        r"(?:every|each|all|any) (?:\w{1,16} )?(?:urls?|links?) (?:that )?(?:you|the (?:assistant|model"
        r"|agent)) (?:\w{1,16} )?"
        r"(?:must|should|shall|has to|have to|needs? to)\b[^.!?]{0,40}?[ ](?:https?://|[\w\-]{1,40}\.[a-z]{2,12}/)",
    ),
    build_phrase_rule(
        "agent_instruction",
        "proceed continue & asking confirmation approval permission waiting prompting",
        r"(?:proceed|continue|go ahead) without (?:asking|confirmation|approval|permission|waiting|prompting)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "locked deleted terminated suspended banned penalised penalized closed wiped charged punished & called used "
        "invoked run",
        r"(?:if|unless) (?:this|the|that) (?:tool|server|function) (?:is"
        r"|has) (?:not )?(?:been )?(?:first )?(?:called|used"
        r"|invoked|run)\b[^.!?]{0,100}?[ ](?:will|shall) be (?:\w{1,16} )?(?:locked|deleted|terminated|suspended|banned"
        r"|penali[sz]ed|closed|wiped|charged|punished)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "restrictions rules filters limitations boundaries guidelines morals ethics & no & assistant ai model agent "
        "you character persona chatbot",
        r"(?:assistant|ai|model|agent|character|persona|chatbot|you)\b[^.!?]{0,40}?[ ](?:has|have|with|knows?"
        r"|follows?) no "
        r"(?:\w{1,16} )?(?:restrictions|rules|filters|limitations|boundaries|guidelines|morals|ethics)\b",
    ),
    build_phrase_rule(
        "concealment",
        "mentioned talked discussed brought announced & not never",
        r"(?:this|that|it|these|which) (?:[\w']{1,16} ){0,4}?(?:should|must|may|shall|need|is|are) (?:not"
        r"|never) (?:to )?be "
        r"(?:mentioned|talked about|discussed|brought up|announced)\b",
        negatable=False,
    ),
)

_TOOLS_OF_OTHERS = (
    build_phrase_rule(
        "agent_instruction",
        "other & tools servers & malicious broken unsafe insecure compromised untrusted harmful fake dangerous "
        "outdated unreliable wrong false",
        r"other (?:\w{1,16} ){0,2}(?:tools|servers)\b[^.!?]{0,60}?[ ](?:are|return|returns|give|contain|produce|send"
        rf"|have been|may be) {_WORDS_2}(?:malicious|broken|unsafe|insecure|compromised|untrusted|harmful|fake"
        rf"|dangerous"
        r"|outdated|unreliable|wrong|false)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "replaces replace supersedes supersede takes & server servers",
        r"(?:replaces?|supersedes?|takes? the place of) (?:the )?(?:tools? )?[\w./]{2,48} (?:tools? )?(?:from|of|in"
        r"|on) "
        r"(?:the |any |all |every )?(?:other |another )?[\w./]{1,32} servers?\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "through via & calls call requests request & other all any every each & servers server tools tool",
        r"(?:all|every|any|each) (?:\w{1,16} )?(?:calls?|requests?) (?:to|of|from|by|for) (?:the )?(?:other|all|any"
        r"|every"
        r"|each) (?:\w{1,16} )?(?:servers?|tools?) (?:must |should |have to |has to |shall |will "
        r"|need to )?(?:always )?"
        r"(?:go|goes|pass|passes|run|be routed|be made|be sent) (?:through|via)\b",
    ),
    build_phrase_rule(
        "exfiltration",
        "pass give provide send include report forward hand tell share & arguments argument parameters inputs input "
        "results result outputs output responses & other each every all any intend plan & of from to for you",
        r"(?:pass|give|provide|send|include|report|forward|hand|tell|share) (?:it |us |me |along |over |this tool "
        r"|also |in )"
        r"{0,2}(?:the |all |any |their ){0,2}(?:names?|and|,|[ ]){0,6}(?:arguments?|parameters?|inputs?|outputs?"
        r"|results?|responses?)\b[^.!?]{0,32}?[ ](?:of|from|to|for) (?:the |your )?(?:each|every|all|any|other)"
        r"(?: (?:\w{1,16} )?(?:tools?|calls?|servers?|of them)\b|[.!;]|$)",
        r"(?:pass|give|provide|send|include|report|forward|hand|tell|share) (?:it |us |me |along |over |this tool "
        r"|also |in )"
        r"{0,2}(?:the |all |any |your ){0,2}(?:arguments?|parameters?|inputs?) (?:that )?you (?:intend|plan"
        r"|are going|were"
        r" going|want|would|will)\b[^.!?]{0,24}?(?:them|other|it to)\b",
    ),
    build_phrase_rule(
        "exfiltration",
        "secret secrets credential credentials password passwords vault keychain & call invoke & pass give send "
        "include put hand",
        r"(?:call|invoke) (?:the )?(?:[\w.]{0,24}[_.\-])?(?:secrets?|credentials?|passwords?|vault|keychain)(?:[_.\-]"
        r"[\w.]{0,24})? (?:tool )?(?:and |then |first ){1,2}(?:pass|give|send|include|put|hand)\b",
    ),
)

_USER_MANIPULATED = (
    build_phrase_rule(
        "agent_instruction",
        "convince persuade trick pressure coax mislead deceive fool lull & user users human person customer victim",
        r"(?:convince|persuade|trick|pressure|coax|mislead|deceive|fool|lull) (?:the |any |your )?(?:users?|human"
        r"|person"
        r"|customers?|victims?)\b (?:that|to|into|about|with|by|so)\b",
    ),
    build_phrase_rule(
        "agent_instruction",
        "master recovery seed mnemonic private wallet card cvv cvc social & ask prompt request urge tell have get "
        "make & user users them",
        rf"(?:ask|prompt|request|urge|tell|have|get|make) (?:the |your )?(?:users?|them) (?:for|to (?:enter|type|give"
        rf"|provide|paste|share|reveal|disclose|confirm|send|tell|input)) {_WORDS_4}{_CREDENTIAL}\b",
    ),
    build_phrase_rule(
        "concealment",
        "pretend lie deny denies feign & user users human it this tool & that to exists exist happened",
        r"(?:pretend|lie|feign) to (?:the |your |any )?(?:users?|human|operator|customers?|owner)\b",
        r"deny (?:that )?(?:it|this|the tool|this tool|these|the \w{1,16}) (?:exists?|happened|was|were|has|ever)\b",
    ),
    build_phrase_rule(
        "concealment",
        "let nobody one notification notifications alert & on has needs have hide dismiss",
        r"(?:do not|don't|never) let on\b(?! (?:\w{1,16} ){0,2}(?:premises|hold))",
        r"(?:nobody|no one) (?:has|have|needs?) to (?:hear|know|learn|find out|notice)\b",
        r"(?:hide|dismiss) the (?:notifications?|alert)\b",
        negatable=False,
    ),
    build_phrase_rule(
        "concealment",
        "silently quietly discreetly invisibly & look open gather extract take grab access scan query search "
        "inspect run start record track note save store watch list use write",
        r"(?:silently|quietly|discreetly|invisibly) (?:also |then |and |first )?(?:look|open|gather|extract|take|grab"
        r"|access|scan|query|search|inspect|run|start|record|track|note|save|store|watch|list|use|write)\b",
    ),
)

_DEMANDED_INPUTS = (
    build_phrase_rule(
        "exfiltration",
        "secret secrets password passwords token tokens key keys credential credentials & whenever when if time soon "
        "& store save send pass copy record forward add include upload",
        r"(?:whenever|when|if|every time|each time|as soon as) (?:an? |any |the "
        r"|some )?(?:new )?(?:\w{1,16} )?(?:secret"
        r"|password|token|api key|key|credential)s? (?:shows? up|appears?|comes? up|occurs?|(?:is|are) (?:seen"
        r"|mentioned"
        r"|entered|shared|visible|typed|used))\b[^.!?]{0,48}?[, ](?:store|save|send|pass|copy|record|forward|add"
        r"|include"
        r"|upload) (?:it|them|that|this|its|their)\b",
    ),
    build_phrase_rule(
        "exfiltration",
        "verbatim hidden & chat conversation & history transcript log",
        r"(?:full|complete|entire|whole|all) (?:chat|conversation|message) (?:history|transcript|logs?)\b[^.!?]{0,40}?"
        r"(?:verbatim|including (?:the |any |all )?(?:hidden|system))\b",
    ),
    build_phrase_rule(
        "exfiltration",
        "token tokens cookie cookies password passwords & bearer access session auth oauth refresh & from",
        r"(?:bearer |access |session |auth |oauth |refresh )(?:tokens?|cookies?|passwords?) from (?:the |your )?"
        r"(?:\w{1,16} ){0,3}?(?:of )?(?:the |your )?(?:current|this|user's|active|ongoing) (?:session|browser"
        r"|conversation"
        r"|chat|context|client)\b",
    ),
    build_phrase_rule(
        "exfiltration",
        "key keys token tokens password passwords credential credentials secret secrets cookie cookies & environment "
        "conversation chat context session memory history browser keychain clipboard & user users all any every",
        r"(?:the users?(?:'s?)?|users?'s?|all|any|every) (?:\w{1,16} )?(?:api |access |session |auth |private "
        r"|secret )?"
        r"(?:keys?|tokens?|passwords?|credentials?|secrets?|cookies?)\b,? (?:that (?:is|are) )?(?:found|seen|discovered"
        r"|present|available|collected|taken|extracted|mentioned)? ?(?:in|from) (?:the |your |this )?"
        r"(?:environment(?! variables?\b)|conversation|chat|context|session|memory|history|browser|keychain"
        r"|clipboard)\b",
    ),
)

AUTHORITY_PHRASES: tuple[PhraseRule, ...] = (
    *_FALSE_AUTHORITY,
    *_PRESSURE,
    *_TOOLS_OF_OTHERS,
    *_USER_MANIPULATED,
    *_DEMANDED_INPUTS,
)


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
