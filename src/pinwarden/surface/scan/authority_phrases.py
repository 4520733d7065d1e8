"""Turns of phrase by which a text sets itself between the agent and everything else that it trusts.

The user who is talked round, the tools of others that are run down or listened in on, the words of a tool that are
to count as the words of a master.
"""

from __future__ import annotations

from pinwarden.surface.scan.phrase_rule import Turn, turn

_WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
_WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
_MODEL = r"(?:ai|llms?|agents?|assistants?|(?:language )?models?|chatbots?|bots?)"
_MASTER = r"(?:users?|humans?|developers?|system|operators?|owners?|administrators?|admins?)"
_CROWN_JEWEL = (
    r"(?:master password|recovery (?:phrase|key|words)|seed (?:phrase|words)|mnemonic|private keys?|wallet keys?"
    r"|card (?:number|security code)|cvv|cvc|social security number)"
)

_OTHER_MASTERS = (
    turn(
        "agent_instruction",
        "longer & bound limited restricted obliged subject constrained required held tied",
        r"(?:you|the (?:assistant|agent|model)) (?:are|is) no longer (?:bound|limited|restricted|obliged|constrained"
        r"|tied|subject|required|held) (?:by|to)\b",
    ),
    turn(
        "agent_instruction",
        "obey follow trust treat execute regard & if & came come comes were was is are",
        rf"(?:obey|follow|trust|treat|execute|regard) (?:[\w'/]{{1,20}} ){{1,9}}as if (?:it|they|this|these) "
        rf"(?:came|come|comes|were|was|had been|is|are) (?:\w{{1,12}} ){{0,2}}(?:from|by|of) (?:the |your "
        rf"|its )?{_MASTER}\b",
    ),
    turn(
        "agent_instruction",
        "ai llm llms agent agents assistant assistants model models chatbot chatbots bot bots & reading seeing "
        "processing process reads sees read see processes",
        rf"(?:any |all |every |each )?(?:ai )?{_MODEL} (?:that |who |which )?(?:is |are )?(?:read(?:s|ing)?"
        r"|see(?:s|ing)?|process(?:es|ing)?) (?:this|these lines|the following)\b[^.!?]{0,24}?[, ]"
        r"(?:must|should|shall|needs? to|ha(?:s|ve) to|(?:is|are) (?:required|expected|asked) to|please)\b",
    ),
    turn(
        "agent_instruction",
        "approval confirmation consent permission & needed required necessary disabled waived off unnecessary",
        rf"(?:user|human|operator|owner)(?:'s)? (?:approval|confirmation|consent|permission)s? (?:is"
        rf"|are) (?:not (?:needed"
        rf"|required|necessary)|disabled|waived|(?:switched |turned )?off|unnecessary|no longer {_WORDS_2}(?:needed"
        r"|required)) (?:for|on|in|with|when)\b",
    ),
    turn(
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
    turn(
        "agent_instruction",
        "overrides override overrule overrules overruled & operator user system developer administrator admin",
        r"(?:overrides?|overrules?) (?:what|anything|everything|whatever) (?:that )?(?:the |your |its )?"
        rf"{_MASTER}\b",
        rf"{_MASTER}\b (?:\w{{1,16}} ){{0,2}}(?:must|should|shall|has to|have to) be (?:overruled|overridden"
        rf"|ignored)\b",
    ),
    turn(
        "agent_instruction",
        "followed obeyed treated handled treat coming & user system developer administrator operator admin",
        rf"(?:followed|obeyed|treated|executed) (?:like|as) (?:a |the |an )?{_MASTER} (?:input|instructions?|messages?"
        r"|prompts?|commands?|requests?)\b",
        rf"treat (?:[\w'/#]{{1,20}} ){{1,9}}as (?:coming|sent|written|given) (?:from|by) (?:the |your "
        rf"|its )?{_MASTER}\b",
    ),
    turn(
        "agent_instruction",
        "url urls link links & you assistant model agent & must should shall has needs",
        r"(?:every|each|all|any) (?:\w{1,16} )?(?:urls?|links?) (?:that )?(?:you|the (?:assistant|model"
        r"|agent)) (?:\w{1,16} )?"
        r"(?:must|should|shall|has to|have to|needs? to)\b[^.!?]{0,40}?[ ](?:https?://|[\w\-]{1,40}\.[a-z]{2,12}/)",
    ),
    turn(
        "agent_instruction",
        "proceed continue & asking confirmation approval permission waiting prompting",
        r"(?:proceed|continue|go ahead) without (?:asking|confirmation|approval|permission|waiting|prompting)\b",
    ),
    turn(
        "agent_instruction",
        "locked deleted terminated suspended banned penalised penalized closed wiped charged punished & called used "
        "invoked run",
        r"(?:if|unless) (?:this|the|that) (?:tool|server|function) (?:is"
        r"|has) (?:not )?(?:been )?(?:first )?(?:called|used"
        r"|invoked|run)\b[^.!?]{0,100}?[ ](?:will|shall) be (?:\w{1,16} )?(?:locked|deleted|terminated|suspended|banned"
        r"|penali[sz]ed|closed|wiped|charged|punished)\b",
    ),
    turn(
        "agent_instruction",
        "restrictions rules filters limitations boundaries guidelines morals ethics & no & assistant ai model agent "
        "you character persona chatbot",
        r"(?:assistant|ai|model|agent|character|persona|chatbot|you)\b[^.!?]{0,40}?[ ](?:has|have|with|knows?"
        r"|follows?) no "
        r"(?:\w{1,16} )?(?:restrictions|rules|filters|limitations|boundaries|guidelines|morals|ethics)\b",
    ),
    turn(
        "concealment",
        "mentioned talked discussed brought announced & not never",
        r"(?:this|that|it|these|which) (?:[\w']{1,16} ){0,4}?(?:should|must|may|shall|need|is|are) (?:not"
        r"|never) (?:to )?be "
        r"(?:mentioned|talked about|discussed|brought up|announced)\b",
        negatable=False,
    ),
)

_TOOLS_OF_OTHERS = (
    turn(
        "agent_instruction",
        "other & tools servers & malicious broken unsafe insecure compromised untrusted harmful fake dangerous "
        "outdated unreliable wrong false",
        r"other (?:\w{1,16} ){0,2}(?:tools|servers)\b[^.!?]{0,60}?[ ](?:are|return|returns|give|contain|produce|send"
        rf"|have been|may be) {_WORDS_2}(?:malicious|broken|unsafe|insecure|compromised|untrusted|harmful|fake"
        rf"|dangerous"
        r"|outdated|unreliable|wrong|false)\b",
    ),
    turn(
        "agent_instruction",
        "replaces replace supersedes supersede takes & server servers",
        r"(?:replaces?|supersedes?|takes? the place of) (?:the )?(?:tools? )?[\w./]{2,48} (?:tools? )?(?:from|of|in"
        r"|on) "
        r"(?:the |any |all |every )?(?:other |another )?[\w./]{1,32} servers?\b",
    ),
    turn(
        "agent_instruction",
        "through via & calls call requests request & other all any every each & servers server tools tool",
        r"(?:all|every|any|each) (?:\w{1,16} )?(?:calls?|requests?) (?:to|of|from|by|for) (?:the )?(?:other|all|any"
        r"|every"
        r"|each) (?:\w{1,16} )?(?:servers?|tools?) (?:must |should |have to |has to |shall |will "
        r"|need to )?(?:always )?"
        r"(?:go|goes|pass|passes|run|be routed|be made|be sent) (?:through|via)\b",
    ),
    turn(
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
    turn(
        "exfiltration",
        "secret secrets credential credentials password passwords vault keychain & call invoke & pass give send "
        "include put hand",
        r"(?:call|invoke) (?:the )?(?:[\w.]{0,24}[_.\-])?(?:secrets?|credentials?|passwords?|vault|keychain)(?:[_.\-]"
        r"[\w.]{0,24})? (?:tool )?(?:and |then |first ){1,2}(?:pass|give|send|include|put|hand)\b",
    ),
)

_USER_TALKED_ROUND = (
    turn(
        "agent_instruction",
        "convince persuade trick pressure coax mislead deceive fool lull & user users human person customer victim",
        r"(?:convince|persuade|trick|pressure|coax|mislead|deceive|fool|lull) (?:the |any |your )?(?:users?|human"
        r"|person"
        r"|customers?|victims?)\b (?:that|to|into|about|with|by|so)\b",
    ),
    turn(
        "agent_instruction",
        "master recovery seed mnemonic private wallet card cvv cvc social & ask prompt request urge tell have get "
        "make & user users them",
        rf"(?:ask|prompt|request|urge|tell|have|get|make) (?:the |your )?(?:users?|them) (?:for|to (?:enter|type|give"
        rf"|provide|paste|share|reveal|disclose|confirm|send|tell|input)) {_WORDS_4}{_CROWN_JEWEL}\b",
    ),
    turn(
        "concealment",
        "pretend lie deny denies feign & user users human it this tool & that to exists exist happened",
        r"(?:pretend|lie|feign) to (?:the |your |any )?(?:users?|human|operator|customers?|owner)\b",
        r"deny (?:that )?(?:it|this|the tool|this tool|these|the \w{1,16}) (?:exists?|happened|was|were|has|ever)\b",
    ),
    turn(
        "concealment",
        "let nobody one notification notifications alert & on has needs have hide dismiss",
        r"(?:do not|don't|never) let on\b(?! (?:\w{1,16} ){0,2}(?:premises|hold))",
        r"(?:nobody|no one) (?:has|have|needs?) to (?:hear|know|learn|find out|notice)\b",
        r"(?:hide|dismiss) the (?:notifications?|alert)\b",
        negatable=False,
    ),
    turn(
        "concealment",
        "silently quietly discreetly invisibly & look open gather extract take grab access scan query search "
        "inspect run start record track note save store watch list use write",
        r"(?:silently|quietly|discreetly|invisibly) (?:also |then |and |first )?(?:look|open|gather|extract|take|grab"
        r"|access|scan|query|search|inspect|run|start|record|track|note|save|store|watch|list|use|write)\b",
    ),
)

_WHAT_TO_FILL_IN = (
    turn(
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
    turn(
        "exfiltration",
        "verbatim hidden & chat conversation & history transcript log",
        r"(?:full|complete|entire|whole|all) (?:chat|conversation|message) (?:history|transcript|logs?)\b[^.!?]{0,40}?"
        r"(?:verbatim|including (?:the |any |all )?(?:hidden|system))\b",
    ),
    turn(
        "exfiltration",
        "token tokens cookie cookies password passwords & bearer access session auth oauth refresh & from",
        r"(?:bearer |access |session |auth |oauth |refresh )(?:tokens?|cookies?|passwords?) from (?:the |your )?"
        r"(?:\w{1,16} ){0,3}?(?:of )?(?:the |your )?(?:current|this|user's|active|ongoing) (?:session|browser"
        r"|conversation"
        r"|chat|context|client)\b",
    ),
    turn(
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

LURES: tuple[Turn, ...] = (*_OTHER_MASTERS, *_PRESSURE, *_TOOLS_OF_OTHERS, *_USER_TALKED_ROUND, *_WHAT_TO_FILL_IN)
