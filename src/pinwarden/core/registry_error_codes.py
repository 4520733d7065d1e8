"""Error codes about bundles, trusted keys, registries and transparency logs. See `error_codes` for the others."""

from __future__ import annotations

from pinwarden.core.error_codes import EXIT_REFUSED, EXIT_UNCHECKED, EXIT_USAGE, ErrorCode

REGISTRY_CODES = (
    # Section 7 of the verifier rulebook, by its names and in its order: the first that applies is reported.
    ErrorCode(
        "POINTER_SIGNATURE_INVALID",
        EXIT_REFUSED,
        "No trusted registry signed the pointer, or the signature does not cover what it points to.",
        "Download the pointer again. If the error persists, do not install from this registry and ask its operator.",
    ),
    ErrorCode(
        "LEGACY_NOT_ALLOWED",
        EXIT_REFUSED,
        "The name of the channel begins with legacy-, and the installer policy does not allow legacy channels.",
        "Choose another channel, or allow legacy channels in the installer policy.",
    ),
    ErrorCode(
        "CID_PROFILE_MISMATCH",
        EXIT_REFUSED,
        "The documents of the bundle use different CID profiles, or an unsupported one.",
        "Ask the publisher to pack the bundle again. Its identifiers cannot be compared.",
    ),
    ErrorCode(
        "ROOT_CID_MISMATCH",
        EXIT_REFUSED,
        "The pointer and the descriptor name different bundles.",
        "Download both again. If the error persists, the registry serves the descriptor of another bundle.",
    ),
    ErrorCode(
        "DESCRIPTOR_CID_MISMATCH",
        EXIT_REFUSED,
        "The descriptor does not have the identifier that the pointer names.",
        "Do not use it. Download the descriptor again, or from another copy of the registry.",
    ),
    ErrorCode(
        "MANIFEST_CID_MISMATCH",
        EXIT_REFUSED,
        "The manifest's list of files does not have the identifier that the manifest or the pointer names.",
        "Do not use it. Download the manifest again, or from another copy of the registry.",
    ),
    ErrorCode(
        "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
        EXIT_REFUSED,
        "The manifest belongs to another descriptor than the one the pointer names.",
        "Download the manifest again. All documents of a bundle must belong together.",
    ),
    ErrorCode(
        "MANIFEST_ENTRY_ORDER_INVALID",
        EXIT_REFUSED,
        "The files in the manifest are not sorted, or one is listed twice.",
        "Ask the publisher to pack the bundle again.",
    ),
    ErrorCode(
        "MANIFEST_PATH_INVALID",
        EXIT_REFUSED,
        "A path in the manifest leads outside the bundle, or does not name the same file on every system.",
        "Do not use the bundle. Report it to the registry.",
    ),
    ErrorCode(
        "ATTESTATION_EXPIRED",
        EXIT_REFUSED,
        "The attestations of the bundle by known signers have expired.",
        "Ask the signer for a new attestation of this bundle.",
    ),
    ErrorCode(
        "NO_VALID_ATTESTATIONS",
        EXIT_REFUSED,
        "No known signer attests the integrity of the bundle.",
        "Ask a signer you trust to attest it, or add the key of its signer: pinwarden trust add",
    ),
    ErrorCode(
        "REQUIRED_SIGNER_MISSING",
        EXIT_REFUSED,
        "No attestation is from a signer the registry requires.",
        "Ask one of the signers in the message for an attestation.",
    ),
    ErrorCode(
        "VERIFIER_ATTESTATION_REQUIRED",
        EXIT_REFUSED,
        "The registry requires an attestation by a verifier, and there is none.",
        "Ask a signer trusted as a verifier for an attestation.",
    ),
    ErrorCode(
        "INSUFFICIENT_ATTESTATIONS",
        EXIT_REFUSED,
        "The bundle has attestations by fewer signers than the registry requires. Each signer counts once.",
        "Ask more signers for an attestation.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_NETWORK",
        EXIT_REFUSED,
        "The tool requests network access, and the installer policy does not allow it.",
        "Use another tool, or allow network access in the installer policy.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_FILESYSTEM",
        EXIT_REFUSED,
        "The tool requests more file system access than the installer policy allows.",
        "Use another tool, or allow the access in the installer policy.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_EXEC",
        EXIT_REFUSED,
        "The tool requests to start programs, and the installer policy does not allow it.",
        "Use another tool, or allow starting programs in the installer policy.",
    ),
    # Not in the rulebook; each is reported only if none of the above applies.
    ErrorCode(
        "POINTER_NOT_FOUND",
        EXIT_REFUSED,
        "The pointer document has no entry for this tool and channel.",
        "Check the spelling of the tool and the channel.",
    ),
    ErrorCode(
        "TOOL_NAME_MISMATCH",
        EXIT_REFUSED,
        "The pointer leads to a bundle with another name.",
        "Do not install it. The registry serves another tool than the one you requested.",
    ),
    ErrorCode(
        "DOCUMENT_INVALID",
        EXIT_UNCHECKED,
        "A document of a bundle or log lacks a member, or has one of the wrong type.",
        "Download the document again, or report the member in the message to its author.",
    ),
    # Trusted keys
    ErrorCode(
        "TRUST_INVALID",
        EXIT_UNCHECKED,
        "The file of trusted keys is damaged or ambiguous. No key in it is trusted.",
        "Restore the file from a backup, or add the keys again: pinwarden trust add",
    ),
    ErrorCode(
        "TRUST_UNKNOWN",
        EXIT_REFUSED,
        "The trust store has no entry with this key or name.",
        "Run: pinwarden trust list",
    ),
    ErrorCode(
        "KEY_REVOKED",
        EXIT_REFUSED,
        "The key is revoked in the trust store and cannot be trusted again.",
        "Ask its owner for the new key, and add it with `pinwarden trust add --replaces`.",
    ),
    ErrorCode(
        "REGISTRY_KEY_ENDED",
        EXIT_REFUSED,
        "The signature is by a key that the registry has replaced; its log names the new key.",
        "If the registry changed its key just now, try again. If the error persists, the old key may be in use by "
        "another party: ask the operator of the registry.",
    ),
    # Installing from a registry
    ErrorCode(
        "POINTER_UNLOGGED",
        EXIT_REFUSED,
        "The registry serves a pointer that its log does not contain, or that it does not prove to be in the log.",
        "Do not install it, because other users may get something else. If the log is at another address, name it with "
        "--log.",
    ),
    ErrorCode(
        "POINTER_STALE",
        EXIT_REFUSED,
        "The registry serves an old pointer, although its log has a newer one for this tool and channel.",
        "Try again. If the error persists, ask the operator of the registry why you get an old version.",
    ),
    ErrorCode(
        "VERSION_BELOW_FLOOR",
        EXIT_REFUSED,
        "The channel points to a lower version than the minimum you requested.",
        "Choose another channel, or a lower minimum if you want the older version.",
    ),
    ErrorCode(
        "VERSION_LOCKED",
        EXIT_REFUSED,
        "Another version of the tool is locked, and `install` does not change approvals.",
        "Run `pinwarden update`. It shows what would change and asks before it writes.",
    ),
    # Transparency logs
    ErrorCode(
        "NOTE_INVALID",
        EXIT_UNCHECKED,
        "The text is not a signed note, verifier key, checkpoint or log proof (C2SP signed-note, tlog-checkpoint, "
        "tlog-proof).",
        "Download the file again, unconverted. A note ends with a newline and has no other control characters.",
    ),
    ErrorCode(
        "LOG_PROOF_INVALID",
        EXIT_REFUSED,
        "A proof of the transparency log does not lead to the signed root, so the log may show different histories.",
        "Do not trust this log until its operator explains. Keep both checkpoints as evidence.",
    ),
    ErrorCode(
        "LOG_FROZEN",
        EXIT_REFUSED,
        "The newest checkpoint of the log is older than you accept, so newer events may be hidden.",
        "Check the clock of this machine, then try again later or use another mirror. Operators of static exports must "
        "export again regularly.",
    ),
    ErrorCode(
        "LOG_ROLLBACK",
        EXIT_REFUSED,
        "The registry shows an older checkpoint of its log than before.",
        "Do not install from it. Keep both checkpoints as evidence and ask the operator of the registry.",
    ),
    ErrorCode(
        "LOG_EVENT_INVALID",
        EXIT_REFUSED,
        "An entry of the log is not an event that the registry signed, or contradicts earlier entries.",
        "Do not install from it. Keep the entry as evidence and ask the operator of the registry.",
    ),
    ErrorCode(
        "LOG_STATE_CORRUPT",
        EXIT_UNCHECKED,
        "The file with the last verified checkpoint of a log is damaged.",
        "Restore it from a backup. Starting over loses the proof that the log was not rewritten.",
    ),
    ErrorCode(
        "LOG_WITNESS_MISSING",
        EXIT_REFUSED,
        "Fewer witnesses than required have cosigned the checkpoint of the log.",
        "Wait until the witnesses have signed it, or require fewer witnesses if you trust the registry alone.",
    ),
    # Publishing, and running a registry
    ErrorCode(
        "REGISTRY_NAME_INVALID",
        EXIT_USAGE,
        "The name of the namespace, tool, channel or version is not valid in a registry.",
        "Use lower-case letters, digits, - and _, with dots between the parts of a name.",
    ),
    ErrorCode(
        "REGISTRY_KEY_MISMATCH",
        EXIT_UNCHECKED,
        "The database belongs to a registry with another key or log.",
        "Start every replica with the key file of the first one (--key), or choose another database.",
    ),
    ErrorCode(
        "REGISTRY_LOG_BEHIND",
        EXIT_UNCHECKED,
        "The log in the registry's database is shorter than the last checkpoint the registry signed, or is another "
        "log. Appending to it would fork the log.",
        "Restore the newest copy of the database, taken after the registry was stopped. If there is none, start a new "
        "registry in another folder with a new key.",
    ),
    ErrorCode(
        "PUBLISHER_UNKNOWN",
        EXIT_REFUSED,
        "The request has no token, or one that is unknown, expired or revoked.",
        "Ask the operator of the registry for a token. Operators run: pinwarden registry token add",
    ),
    ErrorCode(
        "NAMESPACE_REFUSED",
        EXIT_REFUSED,
        "The token or the key of the request does not belong to this namespace.",
        "Publish in your own namespace, with a key that its owner has added.",
    ),
    ErrorCode(
        "VERSION_EXISTS",
        EXIT_REFUSED,
        "The registry has this version already, with other content. Published versions do not change.",
        "Publish the changed bundle as a new version.",
    ),
    ErrorCode(
        "VERSION_OLDER",
        EXIT_REFUSED,
        "Publishing this version would move its channel back from a newer one.",
        "Publish on another channel (--channel). To move the channel back, use --allow-older.",
    ),
    ErrorCode(
        "VERSION_YANKED",
        EXIT_REFUSED,
        "The publisher yanked this version, so no channel can point to it.",
        "Choose another version. Only the publisher can undo the yank.",
    ),
    ErrorCode(
        "REQUEST_STALE",
        EXIT_REFUSED,
        "The signed request is for another registry, too old, from the future, or was carried out already.",
        "Check the clock of this machine, then sign the request again.",
    ),
    ErrorCode(
        "PUBLISH_LIMIT",
        EXIT_REFUSED,
        "The registry refused the upload: too many requests or bytes in an hour, or a file that is too large.",
        "Wait, or ask the operator of the registry for a higher limit.",
    ),
)
