"""``hub cluster add``: with a given kubeconfig, creates an account, a token, a Secret and a registry entry.

All checks come before the first write: first of the registry and the hub cluster, then of the remote cluster. The
command is idempotent: it continues an earlier run that failed, and a run after a successful one changes nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from hub.errors import Forbidden, HubError, KubeconfigError
from hub.kube.admin import administer
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.secret import Secret
from hub.kube.tokens import account_of, request_token, token_life
from hub.model import Node
from hub.onboarding import remote
from hub.onboarding.credential import content_of, kubeconfig, secret, token_of
from hub.onboarding.entry import entry
from hub.onboarding.file import Registered
from hub.onboarding.manifests import Manifest
from hub.onboarding.networks import proposed
from hub.onboarding.options import ClusterOptions, ClusterSecret, connected, open_cluster_secret, remote_access
from hub.onboarding.remote import Refused, Step
from hub.runtime.clock import Clock

RENEW_AT = 0.5
"""A token older than this share of its life is replaced, as by a running hub (hub.onboarding.renewal)."""


@dataclass(frozen=True, slots=True)
class AddResult:
    """What the user still has to do.

    Attributes:
        secret: the Secret to apply to the hub cluster; None if there is nothing to apply.
        entry: the entry to add to the registry, not indented; "" if there is nothing to add.
        notes: hints for the user.
    """

    secret: Manifest | None
    entry: str
    notes: tuple[str, ...]


async def add(options: ClusterOptions, clock: Clock, steps: list[Step]) -> AddResult:
    """Add the cluster.

    Args:
        options: the options of the command line.
        clock: source of time.
        steps: receives a step for every object created, changed or found, even if a later step fails.

    Raises:
        Refused: a name is taken; nothing was changed.
        HubError: something is missing or forbidden, or a cluster does not answer; completed steps are not undone.
    """
    registered = await asyncio.to_thread(Registered.read, options.registry, options.name) if options.registry else None
    if registered is not None:
        registered.check_free()
    given = await remote_access(options, options.kubeconfig) if options.kubeconfig is not None else None
    async with AsyncExitStack() as stack:
        secret_store = found = None
        if options.apply or options.kubeconfig is None:
            secret_store = await stack.enter_async_context(open_cluster_secret(options, clock))
            found = await secret_store.find()
            if found is None and options.apply:
                await secret_store.check_namespace()
        access = given or _own_access(secret_store, found)
        if secret_store is not None and access.server == secret_store.server:
            raise Refused("that kubeconfig leads to the hub cluster itself; in the registry use the cluster local")
        kept = None
        if secret_store is not None and found is not None and not options.rotate:
            kept = _same_cluster(options, secret_store, found, access)
        return await _Adding(options, clock, steps, registered, secret_store, found, kept).run(access)


def _same_cluster(
    options: ClusterOptions, secret_store: ClusterSecret, found: Manifest, access: ClusterAccess
) -> ClusterAccess | None:
    """The access in the Secret; None if the Secret holds no usable kubeconfig.

    Raises:
        Refused: the kubeconfig in the Secret leads to another cluster.
    """
    try:
        kept = _access_in(found, secret_store.where)
    except KubeconfigError:
        return None
    if kept.server != access.server:
        raise Refused(
            f"{secret_store.where} leads to {kept.server}, this kubeconfig to {access.server}: the name is taken; "
            f"choose another, or give --rotate if {options.name} has moved"
        )
    return kept


def _own_access(secret_store: ClusterSecret | None, found: Manifest | None) -> ClusterAccess:
    """The access in the Secret; with it the account requests a token for itself.

    Raises:
        KubeconfigError: the Secret does not exist or holds no usable kubeconfig.
    """
    where = secret_store.where if secret_store is not None else "the Secret"
    if found is None:
        raise KubeconfigError(f"{where} does not exist: give --from-kubeconfig FILE, a kubeconfig of an administrator")
    return _access_in(found, where)


def _access_in(found: Manifest, where: str) -> ClusterAccess:
    """The access in a Secret.

    Raises:
        KubeconfigError: the Secret holds no usable kubeconfig.
    """
    content = content_of(found)
    if content is None:
        raise KubeconfigError(f"{where} holds no kubeconfig; give --from-kubeconfig FILE and --rotate")
    return parse_kubeconfig(content, origin=where, policy=KubeconfigPolicy())


@dataclass(slots=True)
class _Adding:
    """One run of :func:`add`.

    Attributes:
        secret_store: the cluster's Secret; None if the hub cluster is neither read nor written.
        found: the cluster's Secret; None if it does not exist.
        kept: the access in the Secret, if its token may be kept; None = request a new token.
    """

    options: ClusterOptions
    clock: Clock
    steps: list[Step]
    registered: Registered | None
    secret_store: ClusterSecret | None
    found: Manifest | None
    kept: ClusterAccess | None

    async def run(self, access: ClusterAccess) -> AddResult:
        notes = await self._account(access)
        seen = await self._nodes_with_kept_token()
        if seen is not None:
            content, nodes = None, seen
            self.steps.append(Step(self._secret, "unchanged"))
        else:
            content, nodes = await self._credential(access, notes)
        text = self._entry(nodes, notes)
        if self.options.apply and self.registered is not None:
            await asyncio.to_thread(self.registered.text_with_entry, text)  # before the Secret is written
        if content is not None and self.options.apply and self.secret_store is not None:
            self.steps.append(Step(self._secret, await self.secret_store.write(content, self.found)))
            content = None
        if self.options.apply and self.registered is not None:
            done = await asyncio.to_thread(self.registered.add, text)
            self.steps.append(Step(f"cluster {self.options.name} in {self.options.registry}", done))
            text = ""
        made = secret(self.options.name, self.options.secrets_namespace, content) if content is not None else None
        return AddResult(made, text, tuple(notes))

    @property
    def _secret(self) -> str:
        return f"Secret {self.options.secrets_namespace}/{self.options.name}"

    async def _account(self, access: ClusterAccess) -> list[str]:
        """Create or complete the account, if ``access`` is an administrator's; returns hints for the user."""
        wanted = self.options.access
        if account_of(token_of(access)) == wanted.account:
            self.steps.append(Step("ServiceAccount {}/{}".format(*wanted.account), "kept"))
            return []
        if self.options.kubeconfig is None:
            return []
        async with administer(Credentials(access, self.clock)) as admin:
            await remote.grant(admin, wanted, self.steps)
            more = await remote.more_rights(admin, wanted)
        return [f"the account may also {right}, from an earlier run" for right in more]

    async def _nodes_with_kept_token(self) -> list[Node] | None:
        """The Nodes, read with the token in the Secret; None if a new token is needed."""
        kept = self.kept
        if kept is None:
            return None
        life = token_life(token_of(kept))
        if account_of(token_of(kept)) != self.options.access.account or life is None or life[0] is None:
            return None
        if self.clock.wall() > life[0] + RENEW_AT * (life[1] - life[0]):
            return None
        try:
            async with connected(kept, self.clock) as client:
                return await remote.nodes(client, self.options.access, self.clock)
        except HubError:
            return None

    async def _credential(self, access: ClusterAccess, notes: list[str]) -> tuple[str, list[Node]]:
        """Make a kubeconfig with a new token and test it by reading the Nodes; returns both."""
        account = account_of(token_of(access)) if self.options.kubeconfig is None else self.options.access.account
        if account is None:
            raise KubeconfigError(f"{access.origin}: no token of a ServiceAccount: give --from-kubeconfig FILE")
        token = await self._token(access, account)
        begins, ends = token_life(token) or (None, 0.0)
        if begins is not None and ends - begins < 0.9 * self.options.lifetime:
            notes.append(f"the cluster gives tokens for {(ends - begins) / 3600:.1f} h at most")
        ca = access.ca_data
        if ca is None and access.ca_file is not None:
            ca = await asyncio.to_thread(access.ca_file.read_bytes)
        content = kubeconfig(self.options.name, access, ca, token)
        new = parse_kubeconfig(content.encode(), origin="the new kubeconfig", policy=KubeconfigPolicy())
        async with connected(new, self.clock) as client:
            return content, await remote.nodes(client, self.options.access, self.clock)

    async def _token(self, access: ClusterAccess, account: tuple[str, str]) -> Secret:
        """Request a token for the account; its errors say what the user should do."""
        try:
            async with connected(access, self.clock) as client:
                return await request_token(client, account, self.options.lifetime)
        except Forbidden as error:
            if isinstance(access.auth, Token) and account_of(access.auth.value) == account:
                raise HubError(
                    f"cluster {self.options.name}: the account may not renew its own token (serviceaccounts/token: "
                    f"create); apply all of: hub cluster add {self.options.name} --print-manifests"
                ) from error
            raise remote.in_remote(self.options.access, error) from error
        except HubError as error:
            raise remote.in_remote(self.options.access, error) from error

    def _entry(self, nodes: list[Node], notes: list[str]) -> str:
        """The text of the registry entry; "" if the registry has the entry.

        If the registry is not read, a rotation of an existing Secret implies that the registry has the entry.
        """
        if self.registered.exists if self.registered is not None else self.options.rotate and self.found is not None:
            return ""
        known = remote.addresses(nodes)
        networks = list(map(str, self.options.networks)) or proposed(known)
        if not networks and self.registered is not None and self.options.apply:
            raise HubError(
                f"cluster {self.options.name} has no nodes yet to propose networks from: give --allowed-cidr"
            )
        if not self.options.networks and networks:
            notes.append(f"allowedCIDRs are a proposal, from the addresses of {len(nodes)} nodes: review them")
        left = remote.outside(known, self.options.networks) if self.options.networks else ()
        if left:
            notes.append(f"{len(left)} nodes are outside of --allowed-cidr, such as {left[0]}: they are not published")
        return entry(self.options.name, networks, self.options.provider, self.options.access.services)
