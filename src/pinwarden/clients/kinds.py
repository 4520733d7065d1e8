"""The table of every kind of change in a client's configuration, with its severity."""

from __future__ import annotations

from pinwarden.core.report import FindingKinds, kind_table

CONFIG_KINDS: FindingKinds = kind_table(
    critical=(
        ("command_swapped", "The approved entry now starts another program."),
        ("package_swapped", "The approved entry now runs another package, image, file or address."),
        ("danger_added", "The approved entry can now run what nobody reviewed."),
        ("address_moved", "The address now leads to another scheme or host."),
        ("redirecting_variable", "A variable makes the approved command load, fetch or trust something else."),
        ("folder_decides", "The command is found by the folder it is started in, and that folder is another one."),
        ("ambiguous_entry", "The entry now has a command and an address, and clients differ in which one they use."),
        ("unusable_entry", "The entry can no longer be understood, so it cannot be compared."),
        ("rogue_entry", "A server is configured that nobody approved."),
        (
            "repeated_entry",
            "A server is configured twice for the same project, and only the client knows which counts.",
        ),
        ("look_alike_entry", "A server is configured that nobody approved, under a name close to an approved one."),
        ("kind_swapped", "The approved entry was a command and is now an address, or the other way round."),
    ),
    review=(
        ("pin_loosened", "The entry named one release and now leaves open which one is run."),
        ("pin_tightened", "The entry left open which release is run and now names one that nobody reviewed."),
        ("release_changed", "The entry names another release of the same package."),
        ("launcher_changed", "The same package is started by another program."),
        ("program_moved", "A program of the same name is taken from another folder."),
        ("arguments_changed", "The command is given other arguments."),
        ("variable_added", "The server is given a variable that nobody reviewed."),
        ("variable_changed", "A variable has another value."),
        ("variable_removed", "A variable that was approved is gone."),
        ("header_added", "Requests carry a header that nobody reviewed."),
        ("header_changed", "A header has another value."),
        ("header_removed", "A header that was approved is gone."),
        ("folder_changed", "The command is started in another folder."),
        ("address_changed", "The address is different, on the same host."),
        ("transport_changed", "The server is spoken to in another way."),
        ("entry_enabled", "An approved entry that was switched off is now started."),
        ("consent_widened", "More calls pass without asking the user."),
        ("unlocked_entry", "The server is approved for another client or scope, and not for this one."),
        ("answers_changed", "The file proposes another answer to a question that decides what is started."),
        ("member_changed", "Something else about the entry is different."),
    ),
    info=(
        ("placeholder_spelled", "The same variable is referred to in another spelling."),
        ("placeholder_filled", "A placeholder was replaced by a value."),
        ("consent_narrowed", "Fewer calls pass without asking the user."),
        ("entry_disabled", "The approved entry is switched off."),
    ),
)
"""By kind. The single source for severities and for the reasons people read."""
