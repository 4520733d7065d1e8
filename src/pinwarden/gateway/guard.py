"""What all sessions of one upstream server share: the measure, the policy, and what was judged before."""

from __future__ import annotations

from threading import Lock

from pinwarden.documents.approved import Approved
from pinwarden.documents.digest_policy import GatewayPolicy
from pinwarden.documents.surface import Item, Kind, Surface
from pinwarden.gateway.approved import ApprovedSource
from pinwarden.rules.gates.verdict import Verdict


class Guard:
    """The judge of one upstream, for any number of sessions and threads."""

    def __init__(self, server: str, source: ApprovedSource, policy: GatewayPolicy) -> None:
        self.server = server
        self.policy = policy
        self._source = source
        self._lock = Lock()

    def approved(self) -> Approved | None:
        """What is approved now; None if the first use may be trusted."""
        return self._source.current()

    def set_policy(self, policy: GatewayPolicy) -> None:
        """Take another policy from now on; everything is judged anew under it."""
        raise NotImplementedError

    def trust(self, surface: Surface) -> Approved:
        """Keep what is seen of a server that nobody has approved anything of."""
        return self._source.trust(surface)

    def judge_list(self, kind: Kind, items: tuple[Item, ...], client: str) -> tuple[Verdict, ...]:
        """A verdict for each item of a complete list. Lists that were judged before are remembered."""
        raise NotImplementedError

    def changed(self, kind: Kind) -> None:
        """The server told some session that a list changed: the views of all sessions are stale."""
        raise NotImplementedError

    def notices(self, kind: Kind) -> int:
        """How often `changed` was called, so that a session knows whether its view is older."""
        raise NotImplementedError
