"""The leader renews the tokens that ``hub cluster add`` created, at half of their life.

It renews only tokens in Secrets with our label managed-by: tokens that other tools write are not renewed. It requests
the new token with the old one. It writes the Secret with the resourceVersion that it read, so that a concurrent change
is not overwritten. Every replica sees the new Secret and reconnects. A failed renewal is reported and retried for the
rest of the token's life.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from hub.errors import BadAnswer, Conflict, CredentialError, Forbidden, HubError, NotFound, NotLeader, Unauthorized
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.secret import Secret
from hub.kube.tokens import SHORTEST, account_of, request_token, token_life
from hub.observe.local.secrets import Secrets
from hub.onboarding.credential import content_of, replace_content, token_of, with_token
from hub.onboarding.manifests import is_ours
from hub.registry.spec import ClusterSpec, KubeconfigSecret
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

INTERVAL: Final = 5.0
"""Seconds between checks whether tokens are due; a check needs no request."""
RENEW_AT: Final = 0.5
"""Share of its life after which a token is renewed; the rest is left for retries."""
RETRY: Final = (10.0, 600.0)
"""Seconds between attempts: after the first failure, and at most."""
TIMEOUT: Final = 15.0
"""Seconds for one request to the hub cluster."""
MAX_CONCURRENT: Final = 8
"""Most renewals at the same time."""
OUTCOMES: Final = ("succeeded", "failed")


class Remote(Protocol):
    """The part of :class:`hub.observe.remote.cluster.RemoteCluster` that renewal needs."""

    @property
    def spec(self) -> ClusterSpec: ...  # noqa: D102
    @property
    def client(self) -> Client | None: ...  # noqa: D102
    @property
    def mismatch(self) -> str | None: ...  # noqa: D102


def due(token: Secret | None, wall: float) -> bool:
    """Whether half of a token's life is over at Unix time ``wall``; False if the token lacks its begin or end."""
    life = token_life(token)
    return life is not None and life[0] is not None and wall >= life[0] + RENEW_AT * (life[1] - life[0])


class Renewal:
    """Renews the tokens that are due.

    Args:
        secrets: the Secrets that hold the kubeconfigs.
        client: of the hub cluster; reads and writes the Secrets.
        remotes: returns the current clusters by name.
        clock: source of time.
        leading: returns whether this process is the leader.

    Attributes:
        problems: cluster -> why its last renewal failed; clusters without a problem are not in it.
        counts: (cluster, outcome) -> number of attempts since the start.
    """

    def __init__(
        self,
        secrets: Secrets,
        client: Client,
        remotes: Callable[[], Mapping[str, Remote]],
        clock: Clock,
        leading: Callable[[], bool],
    ) -> None:
        self.problems: dict[str, str] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self._secrets = secrets
        self._client = client
        self._remotes = remotes
        self._clock = clock
        self._leading = leading
        self._backoffs: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self) -> None:
        """Check and renew every few seconds until cancelled; does nothing while this process is not the leader."""
        while True:
            if self._leading():
                await self.renew_due()
            await self._clock.sleep(INTERVAL)

    async def renew_due(self) -> None:
        """Renew the tokens that are due, MAX_CONCURRENT at a time: clusters added on the same day are due together."""
        remotes = dict(self._remotes())
        for name in (self.problems.keys() | self._not_before.keys()) - remotes.keys():
            self._forget(name)
        await asyncio.gather(*(self._renew_if_due(name, remote) for name, remote in remotes.items()))

    def _forget(self, name: str) -> None:
        self.problems.pop(name, None)
        self._backoffs.pop(name, None)
        self._not_before.pop(name, None)

    async def _renew_if_due(self, name: str, remote: Remote) -> None:
        source, client = remote.spec.kubeconfig, remote.client
        if not isinstance(source, KubeconfigSecret) or client is None or remote.mismatch != "":
            return
        token = token_of(client.access.access) if isinstance(client.access, Credentials) else None
        if token is None or not due(token, self._clock.wall()):
            self._forget(name)
            return
        if self._clock.now() < self._not_before.get(name, 0.0):
            return
        try:
            async with self._slots:
                renewed = await self._renew(name, source, client, token)
        except NotLeader:
            return
        except HubError as error:
            self._failed(name, source, error)
            return
        self._backoffs.pop(name, None)
        # Renewed: wait a little, since the connection switches to the new token some seconds later. Not renewed: the
        # Secret is probably not ours, so read it again only after a long time.
        self._not_before[name] = self._clock.now() + RETRY[0 if renewed else 1]
        self.problems.pop(name, None)
        if renewed:
            self.counts[name, "succeeded"] += 1
            log.info("cluster %s: renewed its token in Secret %s", name, source.secret)

    def _failed(self, name: str, source: KubeconfigSecret, error: HubError) -> None:
        backoff = self._backoffs.setdefault(name, Backoff(base=RETRY[0], cap=RETRY[1]))
        self._not_before[name] = self._clock.now() + backoff.next(self._clock.now())
        self.counts[name, "failed"] += 1
        text = _in_words(name, source, error)
        if self.problems.get(name) != text:
            log.warning("cluster %s: cannot renew its token: %s", name, text)
        self.problems[name] = text

    async def _renew(self, name: str, source: KubeconfigSecret, client: Client, token: Secret) -> bool:
        """Replace the token in the Secret.

        Returns:
            False if nothing was written: the Secret is not ours, or no longer contains the token in use.

        Raises:
            HubError: the renewal failed.
            NotLeader: this process stopped leading.
        """
        found = await self._get(source.secret)
        if not is_ours(found):
            return False
        content = content_of(found, source.key)
        account, life = account_of(token), token_life(token)
        if content is None or account is None or life is None or life[0] is None:
            return False
        if with_token(content, token, token) is None:  # another process has just renewed it
            return False
        seconds = max(SHORTEST, round(life[1] - life[0]))
        new = await request_token(client, account, seconds, self._still_leads)
        new_life = token_life(new)
        if new_life is None or new_life[1] <= life[1]:
            raise CredentialError(f"cluster {name} gives a token that does not end later than the present one")
        changed = with_token(content, token, new) or b""
        origin = f"Secret {self._secrets.namespace}/{source.secret}"
        parse_kubeconfig(changed, origin=origin, policy=KubeconfigPolicy(), context=source.context)
        body = msgspec.json.encode(replace_content(found, source.key, changed))
        await self._client.request(
            "PUT", self._secrets.path(source.secret), body=body, timeout=TIMEOUT, admit=self._still_leads
        )
        return True

    async def _get(self, secret: str) -> dict[str, Any]:
        body = await self._client.request("GET", self._secrets.path(secret), timeout=TIMEOUT)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise BadAnswer(200, "", "a Secret that does not decode", what=self._secrets.path(secret)) from None

    def _still_leads(self) -> None:
        if not self._leading():
            raise NotLeader("this process is not the leader any more")


def _in_words(name: str, source: KubeconfigSecret, error: HubError) -> str:
    """The problem and the next step for the user.

    A URL path in the error shows which cluster refuses: only requests to the remote cluster contain "serviceaccounts".
    """
    remote = "serviceaccounts" in str(error)
    match error:
        case Forbidden() if remote:
            return (
                "403: its account may not create tokens of itself («serviceaccounts/token: create»); apply what "
                f"'hub cluster add {name} --print-manifests' prints there"
            )
        case NotFound() if remote:
            return f"its account does not exist any more; run 'hub cluster add {name} --from-kubeconfig …' again"
        case Forbidden():
            return f"403: the hub's account lacks the rule «secrets {source.secret}: get, update» in the hub cluster"
        case Unauthorized() | CredentialError() if remote or isinstance(error, CredentialError):
            return f"{error}; run 'hub cluster add {name} --from-kubeconfig … --rotate --apply'"
        case Conflict():
            return f"Secret {source.secret} changed meanwhile"
    return str(error)
