"""All phrase rules of the scan: orders to an agent, impersonation, dangerous code and concealment."""

from __future__ import annotations

from pinwarden.surface.scan.concealment_phrases import CONCEALMENT_PHRASES
from pinwarden.surface.scan.hidden_text import PhraseRule, build_phrase_rule
from pinwarden.surface.scan.order_phrases import ORDER_PHRASES
from pinwarden.surface.scan.other_languages import LATIN_SCRIPT_PHRASES

_IMPERSONATION_PHRASES = (
    build_phrase_rule(
        "impersonation",
        "im inst sys endoftext eot turn system assistant begin",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id|begin_of_text"
        r"|end)\|>",
        r"\[/?inst\]",
        r"<</?sys>>",
        r"<(?:start|end)_of_turn>",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
        "impersonation",
        "important critical urgent system secret hidden assistant developer admin override directive mandatory "
        "instructions instruction",
        r"<[/!]?[ ]?(?:important|critical|urgent|system|secret|hidden|assistant|developer|admin|override|directive"
        r"|mandatory)(?:[_ \-](?:prompt|message|instructions?|note|override|directive|rules?|context))?[ ]?[/!]?>",
        r"</[ ]?(?:instructions?|rules?)[ ]?>",
        negatable=False,
        certain=True,
    ),
    build_phrase_rule(
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
        certain=True,
    ),
    build_phrase_rule(
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
        certain=True,
    ),
    build_phrase_rule(
        "impersonation",
        "system assistant developer admin override rule rules",
        r"(?:system|assistant|developer|admin) ?: ",
        r"(?:global|mandatory|hard|absolute) rules? ?:",
        r"override ?: ",
        negatable=False,
        shouted=True,
        certain=True,
    ),
    build_phrase_rule(
        "impersonation",
        "note attention memo reminder instruction instructions directive directives notice & ai assistant assistants "
        "agent agents model models llm llms language claude gpt chatgpt gemini copilot",
        r"(?:note|memo|reminder) (?:to|for) (?:the |any |all )?(?:ai|assistants?|agents?|models?|llms?|language models?"
        r"|claude|gpt|chatgpt|gemini|copilot)\b",
        r"attention,? (?:all )?(?:ai|assistants?|agents?|models?|llms?)\b",
        r"(?:instructions?|directives?|notice) (?:to|for) (?:the |any |all )?(?:ai|assistants?|agents?|models?"
        r"|llms?) ?:",
        negatable=False,
    ),
)

# Code that does harm if an agent copies it into the arguments of a call.

_CODE_PHRASES = (
    build_phrase_rule(
        "agent_instruction",
        "curl wget & run execute launch paste",
        r"(?:run|execute|launch|paste)[ ][\"'`]{0,3}(?:sudo )?(?:curl|wget)\b[^\n]{0,120}?\|[ ]?(?:ba|z|da)?sh\b",
        certain=True,
    ),
    build_phrase_rule(
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
        certain=True,
    ),
    build_phrase_rule("agent_instruction", "drop & table", r"[;'] ?drop table \w", certain=True),
    build_phrase_rule(
        "agent_instruction",
        "union & select",
        r"union (?:all )?select \w{1,32}(?:, ?\w{1,32}){0,4} from\b",
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "onerror onload javascript os popen",
        r"on(?:error|load) ?= ?['\"]?\w{1,16}\(",
        r"javascript:\w{1,16}\(",
        r"os\.system\(",
        r"subprocess\.popen\(",
        certain=True,
    ),
    build_phrase_rule(
        "agent_instruction",
        "jsonrpc",
        r"jsonrpc[\"'] ?: ?[\"']2\.0[\"'][^\n]{0,200}?[\"']method[\"'] ?: ?[\"'](?:sampling|tools|notifications)/",
        certain=True,
    ),
)

PHRASE_RULES: tuple[PhraseRule, ...] = (
    *ORDER_PHRASES,
    *CONCEALMENT_PHRASES,
    *_IMPERSONATION_PHRASES,
    *_CODE_PHRASES,
    *LATIN_SCRIPT_PHRASES,
)
