"""Who may come in: what the store of tokens says, and what counts while it cannot be asked.

A store that cannot be reached says nothing about anybody. It is not taken for one without tokens: who was known stays
known, and whether that is enough is the same choice as for the audit log. A store that is damaged says something wrong,
and lets nobody in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.access import Access, Client
from pinwarden.gateway.store.tokens import Token

_AWAY = "DATABASE_UNAVAILABLE"


class KnownClients:
    """The clients of a gateway, looked up again and again."""

    def __init__(
        self,
        read: Callable[[], Sequence[Token]],
        once: Mapping[str, Client],
        say: Callable[[str], None],
        *,
        keep: bool,
        seconds: float,
    ) -> None:
        """``once`` are let in by this process itself. With ``keep`` those who were known are let in while the store is
        away, which it is if it does not answer in so many ``seconds``."""
        self._read = read
        self._once = dict(once)
        self._say = say
        self._keep = keep
        self._seconds = seconds
        # A thread of its own has one connection to the database, and waits for nobody else's.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._reading: asyncio.Future[dict[str, Client]] | None = None
        self.problem = ""
        """What is wrong with the tokens now, in words that anybody may read."""
        self.lets_in = True
        """Whether clients that are known are let in all the same."""

    async def first(self) -> dict[str, Client]:
        """Those who are let in at the start. What cannot be read then raises."""
        return await self._looked_up()

    async def look(self, access: Access) -> None:
        """Let those in who may come in now."""
        owed, self._reading = self._reading, None
        reading = owed or asyncio.ensure_future(self._looked_up())
        done, _ = await asyncio.wait({reading}, timeout=self._seconds if owed is None else 0)
        if not done:
            self._reading = reading  # nobody asks, or waits, a second time while the first answer is owed
            self._cannot_tell(access, PinwardenError(_AWAY, "the database does not answer"))
            return
        try:
            access.set_clients(reading.result())
        except PinwardenError as err:
            self._cannot_tell(access, err)
        else:
            if self.problem:
                self._say("the tokens can be read again")
            self.problem = ""
            self.lets_in = True

    def close(self) -> None:
        """Nobody looks any more."""
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _looked_up(self) -> dict[str, Client]:
        ask = partial(asyncio.get_running_loop().run_in_executor, self._thread, self._read)
        try:
            tokens = await ask()
        except PinwardenError as err:
            if err.code != _AWAY:
                raise
            tokens = await ask()  # only its connection may be gone, and the next one is new
        found = {each.digest: Client(name=each.client, servers=each.servers, token=each.digest) for each in tokens}
        return found | self._once

    def _cannot_tell(self, access: Access, err: PinwardenError) -> None:
        away = err.code == _AWAY
        if not away:
            access.set_clients(self._once)
        elif self._keep:
            access.doubt()
        else:
            access.doubt(self._once)
        self.lets_in = away and self._keep
        then = "those who were known are let in" if away and self._keep else "nobody is let in by one"
        problem = f"the tokens cannot be read, so {then} ({err.code})"
        if problem != self.problem:
            self._say(f"{problem}: {err.message}")
        self.problem = problem
