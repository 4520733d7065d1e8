"""Error codes about bundles, trusted keys, registries and transparency logs. `errors.CODES` has all codes."""

from __future__ import annotations

from pinwarden.core.error_codes import EXIT_REFUSED, EXIT_UNCHECKED, EXIT_USAGE, ErrorCode

REGISTRY_CODES = (
    # The codes of section 7 of the verifier rulebook, in its order: the first one that applies is reported.
    ErrorCode(
        "POINTER_SIGNATURE_INVALID",
        EXIT_REFUSED,
        "No trusted registry signed the pointer, or the signature does not cover all of it.",
        "Download the pointer again. If the error persists, do not install from this registry and ask its operator.",
    ),
    ErrorCode(
        "LEGACY_NOT_ALLOWED",
        EXIT_REFUSED,
        "The name of the channel begins with legacy-, and the installer policy does not allow legacy channels.",
        "Choose another channel, or allow legacy channels in the installer policy.",
    ),
    ErrorCode(
        "BUNDLE_NOT_SKILLS",
        EXIT_REFUSED,
        "The bundle says that it has skills, but its files are not folders with a SKILL.md each, or its skills can run "
        "code and it does not ask for the permission exec.",
        "Pack a folder with a SKILL.md, or a folder of such folders: pinwarden bundle pack DIR --skills NAME --version "
        "VERSION.",
    ),
    ErrorCode(
        "CID_PROFILE_MISMATCH",
        EXIT_REFUSED,
        "The documents of the bundle use different CID profiles, or an unsupported one.",
        "Ask the publisher to pack the bundle again with one supported CID profile.",
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
        "The descriptor does not have the CID that the pointer names.",
        "Download the descriptor again. If the error persists, do not use the bundle, and ask the operator of the "
        "registry.",
    ),
    ErrorCode(
        "MANIFEST_CID_MISMATCH",
        EXIT_REFUSED,
        "The manifest's list of files does not have the CID that the manifest or the pointer names.",
        "Download the manifest again. If the error persists, do not use the bundle, and ask the operator of the "
        "registry.",
    ),
    ErrorCode(
        "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
        EXIT_REFUSED,
        "The manifest belongs to another descriptor than the one the pointer names.",
        "Download the manifest and the descriptor of the same version again.",
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
        "A path in the manifest leads outside the bundle, or names different files on different systems.",
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
        "The bundle has no valid attestation by a signer that you trust.",
        "Ask a signer that you trust to attest the bundle. To trust its present signer, run: pinwarden trust add",
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
        "Use another tool, or allow this access in the installer policy.",
    ),
    ErrorCode(
        "POLICY_BLOCKED_EXEC",
        EXIT_REFUSED,
        "The tool requests to start programs, and the installer policy does not allow it.",
        "Use another tool, or allow starting programs in the installer policy.",
    ),
    # Codes that are not in the rulebook. They are reported only if none of the above applies.
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
        "Download the document again, or ask its author to correct the member that the message names.",
    ),
    # Trusted keys
    ErrorCode(
        "TRUST_INVALID",
        EXIT_UNCHECKED,
        "The file of trusted keys is damaged or ambiguous. No key in it is trusted.",
        "Restore the file from a backup. Or remove it and add the keys again: pinwarden trust add",
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
        "Ask the owner of the key for the new one, and add it with `pinwarden trust add --replaces OLD`.",
    ),
    ErrorCode(
        "REGISTRY_KEY_ENDED",
        EXIT_REFUSED,
        "The signature is by an old key of the registry. Its log names the new key.",
        "If the registry changed its key just now, try again. If the error persists, ask the operator of the registry: "
        "someone else may be using the old key.",
    ),
    # Installing from a registry
    ErrorCode(
        "POINTER_UNLOGGED",
        EXIT_REFUSED,
        "The registry serves a pointer without a proof that its transparency log contains it.",
        "Do not install the bundle, because other users may get another one. If the log is at another address, name it "
        "with --log.",
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
        "Choose another channel, or a lower minimum with --floor VERSION.",
    ),
    ErrorCode(
        "VERSION_LOCKED",
        EXIT_REFUSED,
        "Another version of the tool is locked, and `install` does not change approvals.",
        "Run `pinwarden update` to see what would change. It asks before it writes anything.",
    ),
    # Transparency logs
    ErrorCode(
        "NOTE_INVALID",
        EXIT_UNCHECKED,
        "The text is not a signed note, verifier key, checkpoint or log proof (C2SP signed-note, tlog-checkpoint, "
        "tlog-proof).",
        "Download the file again, as binary data. A note ends with a newline and has no control characters but "
        "newlines.",
    ),
    ErrorCode(
        "LOG_PROOF_INVALID",
        EXIT_REFUSED,
        "A proof of the transparency log does not match its signed root, so the log may show different histories to "
        "different users.",
        "Keep both checkpoints as evidence, and ask the operator of the log. Do not trust the log until then.",
    ),
    ErrorCode(
        "LOG_FROZEN",
        EXIT_REFUSED,
        "The newest checkpoint of the log is older than your limit, so the registry may be hiding newer events.",
        "Check the clock of this machine, then try again later. Operators of a static export renew it with: pinwarden "
        "registry export",
    ),
    ErrorCode(
        "LOG_ROLLBACK",
        EXIT_REFUSED,
        "The registry shows an older checkpoint of its log than before.",
        "Keep both checkpoints as evidence, and ask the operator of the registry. Do not install from it until then.",
    ),
    ErrorCode(
        "LOG_EVENT_INVALID",
        EXIT_REFUSED,
        "An entry of the log is not an event that the registry signed, or contradicts earlier entries.",
        "Keep the entry as evidence, and ask the operator of the registry. Do not install from it until then.",
    ),
    ErrorCode(
        "LOG_STATE_CORRUPT",
        EXIT_UNCHECKED,
        "The file with the last verified checkpoint of a log is damaged.",
        "Restore the file from a backup. Without it, Pinwarden cannot notice that the registry rewrote its log.",
    ),
    ErrorCode(
        "LOG_WITNESS_MISSING",
        EXIT_REFUSED,
        "Fewer witnesses than required have cosigned the checkpoint of the log.",
        "Try again later, when more witnesses have signed. Or require fewer witnesses, if you trust the registry "
        "alone.",
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
        "Start every replica with the key file of the first replica (--key FILE), or choose another database.",
    ),
    ErrorCode(
        "REGISTRY_LOG_BEHIND",
        EXIT_UNCHECKED,
        "The log in the registry's database is shorter than the last checkpoint that the registry signed, or it is a "
        "different log. Appending to it would fork the log.",
        "Restore the newest copy of the database, taken after the registry was stopped. If there is none, start a new "
        "registry in another folder with a new key.",
    ),
    ErrorCode(
        "BACKUP_INVALID",
        EXIT_UNCHECKED,
        "The backup of a registry is damaged or incomplete, or the storage to restore it into is not empty.",
        "Restore another snapshot of the backup into an empty folder: pinwarden registry restore BACKUP --data DIR",
    ),
    ErrorCode(
        "PUBLISHER_UNKNOWN",
        EXIT_REFUSED,
        "The request has no token, or its token is unknown, expired or revoked.",
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
        "The registry already has this version with other content. Published versions do not change.",
        "Publish the changed bundle as a new version.",
    ),
    ErrorCode(
        "VERSION_OLDER",
        EXIT_REFUSED,
        "The channel already has a newer version. Publishing would move the channel back to this one.",
        "Publish on another channel with --channel NAME. To move the channel back, add --allow-older.",
    ),
    ErrorCode(
        "VERSION_YANKED",
        EXIT_REFUSED,
        "The publisher yanked this version, so no channel can point to it.",
        "Choose another version. Only the publisher can undo the yank.",
    ),
    ErrorCode(
        "VERSION_TAKEN_DOWN",
        EXIT_REFUSED,
        "The registry's operator took down this version or its bundle. The registry's log has the reason.",
        "Stop using the version, and choose another one. Only the operator of the registry can undo a takedown.",
    ),
    ErrorCode(
        "RECOVERY_WAITING",
        EXIT_REFUSED,
        "The recovery of the namespace waits, so that its members can see it and object.",
        "Repeat the command when the waiting period has passed: pinwarden registry recover list",
    ),
    ErrorCode(
        "RECOVERY_UNKNOWN",
        EXIT_REFUSED,
        "No recovery of this namespace is waiting.",
        "List the recoveries that wait: pinwarden registry recover list",
    ),
    ErrorCode(
        "REQUEST_STALE",
        EXIT_REFUSED,
        "The signed request is for another registry, is too old or dated in the future, or was used before.",
        "Check the clock of this machine, then sign the request again.",
    ),
    ErrorCode(
        "PUBLISH_LIMIT",
        EXIT_REFUSED,
        "The registry refused the upload: too many requests or bytes in an hour, or a file that is too large.",
        "Make the upload smaller or wait an hour, as the message says, or ask the operator of the registry for a "
        "higher limit.",
    ),
)
