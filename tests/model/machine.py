"""Events of the simulated world, as rules of a hypothesis state machine. A failure shrinks to a script of rules."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hub.model import TargetKey
from tests.model.cloud import ipv6_of
from tests.model.judge import DRAINING
from tests.model.world import FAMILIES, FOREIGN, LOCAL, NAMES, SERVICES, SHARED, World

LAG = 120.0
"""Seconds until a hub has heard of everything: a watch is silent for at most 80 s, a retry comes after 30 s."""
QUIET = 360.0
"""Seconds without a write after which no write may follow: a hold takes 300 s, a retry 60 s."""
LONGEST = 1500.0
"""Seconds within which the writes must end."""
REST = 75.0
"""Seconds in which a restarted hub must not write."""

clusters = st.sampled_from(NAMES)
machines = st.sampled_from([f"n{number}" for number in range(6)])
services = st.sampled_from(sorted(SERVICES))
verbs = st.sampled_from(["create", "update", "delete"])
numbers = st.integers(0, 5)
SECONDS = [0.0, 0.002, 0.02, 0.3, 1.1, 3.0, 6.0, 12.0, 25.0, 40.0, 75.0, 130.0, 320.0]


class HubMachine(RuleBasedStateMachine):
    """One world and its events."""

    steps: ClassVar[int] = 0
    """Steps of all machines in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._world: World | None = None

    @property
    def world(self) -> World:
        """The world, once :meth:`begin` has made it."""
        assert self._world is not None
        return self._world

    @initialize(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 5))
    def begin(self, seed: int, size: int) -> None:
        """Start a hub with clusters of ``size`` nodes, which it publishes."""
        world = self._world = World(seed)
        for name in NAMES:
            for number in range(size):
                world.clouds[name].addresses[f"n{number}"] = _own(name, number)
                world.set_node(name, f"n{number}")
        world.start()
        world.advance(8.0)

    # --- time ---------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(SECONDS))
    def time_goes_by(self, seconds: float) -> None:
        """Time passes, and the hub works."""
        self.world.advance(seconds)

    @rule(seconds=st.sampled_from(SECONDS[:7]))
    def a_moment_goes_by(self, seconds: float) -> None:
        """A few seconds pass, in which most of the hub's reactions happen."""
        self.world.advance(seconds)

    @rule(seconds=st.sampled_from(SECONDS[4:11]))
    def a_while_goes_by(self, seconds: float) -> None:
        """Enough time passes for the hub's periodic work."""
        self.world.advance(seconds)

    @rule(hours=st.sampled_from([-1.0, 0.0, 1.0]))
    def the_wall_clock_is_set(self, hours: float) -> None:
        """The wall clock is changed, by an operator or by NTP."""
        self.world.set_wall_clock(hours * 3600.0)

    # --- nodes --------------------------------------------------------------------------------------

    @rule(cluster=clusters, node=machines, number=st.integers(0, 11), kind=st.sampled_from(["own", "own", "any"]))
    def a_node_comes(self, cluster: str, node: str, number: int, kind: str) -> None:
        """A node joins, or gets another address if it exists."""
        addresses = self.world.clouds[cluster].addresses
        address = _own(cluster, number) if kind == "own" else _odd(number)
        if address in addresses.values():
            return
        addresses[node] = address
        self.world.set_node(cluster, node)

    @rule(cluster=clusters, node=machines)
    def a_node_goes(self, cluster: str, node: str) -> None:
        """A node is deleted."""
        if node in self.world.nodes(cluster):
            self.world.drop_node(cluster, node)

    @rule(cluster=clusters)
    def all_nodes_go(self, cluster: str) -> None:
        """All nodes are deleted, by scaling down or by mistake."""
        for node in self.world.nodes(cluster):
            self.world.drop_node(cluster, node)

    @rule(cluster=clusters, node=machines, ready=st.booleans())
    def a_node_flips(self, cluster: str, node: str, ready: bool) -> None:
        """A node changes its readiness."""
        if node in self.world.nodes(cluster):
            self.world.set_node(cluster, node, ready=ready)

    @rule(cluster=clusters, node=machines)
    def a_kubelet_reports(self, cluster: str, node: str) -> None:
        """A kubelet sends a heartbeat."""
        if node in self.world.nodes(cluster):
            self.world.report(cluster, node)

    @rule(number=numbers, what=st.sampled_from(["comes", "goes", "flips"]))
    def a_pod_changes(self, number: int, what: str) -> None:
        """A Pod of the Service in the hub cluster that is copied changes."""
        pods, address = self.world.pods, f"10.60.0.{number + 1}"
        self.world.judge.observe()
        if what == "goes":
            pods.pop(address, None)
        elif what == "comes" or address in pods:
            pods[address] = what == "comes" or not pods[address]
        self.world.put_pods()

    # --- clouds -------------------------------------------------------------------------------------

    @rule(cluster=clusters, mode=st.sampled_from(["ok", "ok", "fail", "partial", "empty", "hang", "defect"]))
    def a_cloud_answers_so(self, cluster: str, mode: Any) -> None:
        """A cloud starts to answer in a certain mode."""
        self.world.judge.observe()
        self.world.clouds[cluster].mode = mode
        self.world.judge.observe()

    @rule(cluster=clusters, node=machines)
    def a_cloud_forgets(self, cluster: str, node: str) -> None:
        """A machine loses its address."""
        if node in self.world.clouds[cluster].addresses:
            self.world.clouds[cluster].addresses[node] = None
            self.world.judge.observe()

    # --- remote API servers -------------------------------------------------------------------------

    @rule(cluster=clusters, how=st.sampled_from(["dead", "hang", "garbage", "401", "403", "429", "500", "503"]))
    def a_cluster_breaks(self, cluster: str, how: str) -> None:
        """A cluster stops giving certain answers."""
        self.world.break_cluster(cluster, how)

    @precondition(lambda self: self._world is not None and self._world.down)
    @rule(number=numbers)
    def a_cluster_heals(self, number: int) -> None:
        """One of the broken clusters works again."""
        down = sorted(self.world.down)
        self.world.heal_cluster(down[number % len(down)])

    @rule(cluster=clusters, how=st.sampled_from(["reset", "end", "expire", "half-line"]))
    def a_watch_ends(self, cluster: str, how: Any) -> None:
        """A watch of a cluster is interrupted in one of several ways."""
        if cluster not in self.world.down:
            self.world.remotes[cluster].cut_stream(how=how)

    @rule(cluster=clusters)
    def the_past_is_forgotten(self, cluster: str) -> None:
        """A cluster forgets its history: every earlier resourceVersion is expired, as after a restart."""
        self.world.remotes[cluster].compact()
        self.world.forgotten(cluster)

    @rule(cluster=clusters)
    def etcd_is_restored(self, cluster: str) -> None:
        """A cluster is restored from a backup: it has earlier objects and resourceVersions."""
        self.world.turn_back(cluster)

    # --- the hub's API server -----------------------------------------------------------------------

    @rule(status=st.sampled_from([409, 422, 429, 500, 503]), count=st.integers(1, 4), verb=verbs)
    def a_write_is_refused(self, status: int, count: int, verb: str) -> None:
        """The next writes to the hub cluster are refused."""
        self.world.hub.fail_next(
            count, status=status, verb=verb, resource="endpointslices", retry_after=2.0 if status == 429 else None
        )

    @rule(count=st.integers(1, 3), verb=verbs, resource=st.sampled_from(["endpointslices", "endpointslices", "leases"]))
    def an_answer_is_lost(self, count: int, verb: str, resource: str) -> None:
        """The next requests are processed, but the connection drops instead of an answer."""
        self.world.hub.lose_answer(count, verb=verb, resource=resource)

    @rule(count=st.integers(1, 3), verb=verbs)
    def a_write_is_dropped(self, count: int, verb: str) -> None:
        """The connection drops before the next writes are processed."""
        self.world.hub.drop_next(count, verb=verb, resource="endpointslices")

    @rule(what=st.sampled_from(["hang", "refuse"]))
    def the_hub_cluster_breaks(self, what: str) -> None:
        """The whole hub cluster fails."""
        if what == "hang":
            self.world.hub.hang()
        else:
            self.world.hub.refuse(503)

    @rule()
    def the_hub_cluster_heals(self) -> None:
        """All faults of the hub cluster end."""
        self.world.hub.heal()

    @rule(how=st.sampled_from(["reset", "end", "expire", "half-line"]), old=st.booleans())
    def a_watch_of_the_hub_cluster_ends(self, how: Any, old: bool) -> None:
        """A watch of the hub cluster is interrupted, perhaps with loss of the history."""
        if old:
            self.world.hub.compact()
        self.world.hub.cut_stream(how=how)

    @rule()
    def an_operator_approves(self) -> None:
        """An operator approves all withheld removals."""
        self.world.approve()

    # --- others who write ---------------------------------------------------------------------------

    @rule(number=numbers, what=st.sampled_from(["delete", "empty", "less", "more", "unlabel", "port"]))
    def somebody_edits_a_slice(self, number: int, what: str) -> None:
        """Someone edits one of the hub's slices."""
        self.world.tamper(number, what)

    @rule(number=st.integers(1, 9))
    def somebody_edits_its_own_slice(self, number: int) -> None:
        """Another controller writes a slice of the same Service."""
        with self.world.judge.world():
            self.world.hub.slices.put(self.world.foreign_slice(f"10.66.0.{number}"))

    @rule(service=services)
    def a_service_is_made_anew(self, service: str) -> None:
        """A Service is deleted with its slices, and perhaps created again."""
        world = self.world
        with world.judge.world():
            if service in {found["metadata"]["name"] for found in world.hub.services.list(namespace="edge")}:
                world.hub.services.delete(service, namespace="edge")
            else:
                world.put_service(service)
        world.trouble()

    # --- the registry -------------------------------------------------------------------------------

    @rule(service=services, cluster=clusters)
    def the_registry_toggles_a_source(self, service: str, cluster: str) -> None:
        """A cluster becomes a source of a Service, or stops being one. A Service without sources is not in the file."""
        sources = self.world.sources[service]
        if cluster in sources:
            sources.remove(cluster)
        elif cluster in SERVICES[service]:
            sources.append(cluster)
        self.world.write_registry()

    @rule(cluster=clusters)
    def the_registry_toggles_a_cluster(self, cluster: str) -> None:
        """A cluster is added to the registry, or removed from it."""
        entry = self.world.entries[cluster]
        entry.present = not entry.present
        self.world.write_registry()

    @rule(cluster=clusters, state=st.sampled_from(["active", "active", "frozen", "standby"]))
    def the_registry_sets_a_state(self, cluster: str, state: str) -> None:
        """The registry changes a cluster's state."""
        self.world.entries[cluster].state = state
        self.world.write_registry()

    @rule(cluster=clusters, policy=st.sampled_from(["keep", "not-ready", "remove"]))
    def the_registry_sets_a_policy(self, cluster: str, policy: str) -> None:
        """The registry changes a cluster's policy for being unreachable."""
        self.world.entries[cluster].unreachable = policy
        self.world.write_registry()

    @rule(service=services)
    def the_registry_sets_a_strategy(self, service: str) -> None:
        """The registry changes a Service's strategy between merge and failover."""
        self.world.failover ^= {service}
        self.world.write_registry()

    @rule(cluster=clusters, number=numbers)
    def the_registry_excludes_an_address(self, cluster: str, number: int) -> None:
        """The registry excludes an address, or stops excluding it."""
        self.world.entries[cluster].excluded ^= {_own(cluster, number)}
        self.world.write_registry()

    @rule()
    def the_registry_breaks(self) -> None:
        """The registry file is only half saved."""
        self.world.break_registry()

    # --- hubs ---------------------------------------------------------------------------------------

    @rule(wait=st.sampled_from([0.0, 1.0, 30.0]))
    def a_hub_crashes(self, wait: float) -> None:
        """A hub is killed, and another one starts after a while."""
        world = self.world
        world.crash(min(world.processes))
        world.advance(wait)
        if not world.processes:
            world.start()

    @rule(write=st.integers(1, 6))
    def a_hub_crashes_at_a_write(self, write: int) -> None:
        """A hub is killed when its n-th write from now is committed, so it gets no answer and writes no more."""
        self.world.crash_at(write)

    @rule()
    def a_hub_is_restarted(self) -> None:
        """A hub is stopped properly and started again."""
        self.world.stop(min(self.world.processes))
        if not self.world.processes:
            self.world.start()

    @precondition(lambda self: self._world is not None and len(self._world.processes) < 2)
    @rule()
    def a_replica_is_started(self) -> None:
        """Another hub starts and stands by."""
        self.world.start()

    @rule()
    def the_lease_moves(self) -> None:
        """Another holder takes the Lease and never renews it."""
        self.world.steal_lease()

    @rule()
    def the_lease_is_out_of_reach(self) -> None:
        """The leader cannot reach its Lease until it has lost it."""
        self.world.cut_off_lease()

    # invariants

    @invariant()
    def nothing_wrong_was_done(self) -> None:
        """No write was a violation."""
        type(self).steps += 1
        if self._world is not None:
            self._world.judge.verdict()

    def teardown(self) -> None:
        """In a healed world the right endpoints are published, and no hub writes more, not even a restarted one."""
        world, self._world = self._world, None
        if world is None:
            return
        try:
            settle(world)
        finally:
            world.close()


def settle(world: World) -> None:
    """Heal the world, wait, and check the final state.

    Raises:
        AssertionError: other endpoints are published than should be, or a hub still writes.
    """
    world.judge.verdict()
    world.heal()
    _until_quiet(world)
    check_end(world)
    before, asked = world.judge.writes, _write_requests(world)
    for name in sorted(world.processes):
        world.crash(name)
    world.start()
    world.advance(REST)
    assert world.judge.writes == before, _more(world, "after a restart", before)
    assert _write_requests(world) == asked, "a restarted hub sends writes that change nothing"
    world.judge.verdict()
    check_least_work(world)


def _write_requests(world: World) -> int:
    return sum(world.hub.requests[verb, "endpointslices"] for verb in ("create", "update", "patch", "delete"))


def _until_quiet(world: World) -> None:
    world.advance(LAG)
    quiet = elapsed = 0.0
    while quiet < QUIET:
        before = world.judge.writes
        world.advance(60.0)
        elapsed += 60.0
        quiet = quiet + 60.0 if world.judge.writes == before else 0.0
        assert elapsed < LONGEST, _more(world, f"and the hub still writes after {elapsed:g} s", 0)


def _more(world: World, when: str, before: int) -> str:
    count = world.judge.writes - before
    return "\n".join([f"{count} slices were written {when}", *world.judge.history[-25:]])


def check_least_work(world: World) -> None:
    """Add a node to every cluster, then remove it: each Service and family that publishes it changes with one write.

    An endpoint that drains is written twice: once when it begins, and once when it is removed.

    Raises:
        AssertionError: there were more writes, or none.
    """
    groups = [group for group in _groups(world) if _publishes(world, group) and world.judge.published(group)]
    for ready in (True, False):
        world.judge.written.clear()
        for cluster in NAMES:
            world.clouds[cluster].addresses["n99"] = _own(cluster, 99)
            if ready:
                world.set_node(cluster, "n99")
            else:
                world.drop_node(cluster, "n99")
        world.advance(15.0)
        for group in groups:
            names = [slice_.name for slice_ in world.judge.slices.values() if slice_.group == group]
            writes = {name: world.judge.written.get(name, 0) for name in names}
            own = _own(group[1], 99) if group[2] == "IPv4" else ipv6_of(_own(group[1], 99))
            assert (own in world.judge.published(group)) is ready, f"{group}: {own} is there: {not ready}"
            most = 2 if group[0] in DRAINING and not ready else 1
            assert sum(writes.values()) <= most, _more(
                world, f"for one node of {group[1]}: {writes}", world.judge.writes
            )


def _groups(world: World) -> list[tuple[str, str, str]]:
    return [
        (service, cluster, family)
        for service, cluster in world.possible()
        for family in FAMILIES.get(service, ("IPv4",))
    ]


def _publishes(world: World, group: tuple[str, str, str]) -> bool:
    """Whether a group publishes all nodes of its cluster, and nothing of it is withheld."""
    service, cluster, family = group
    if group[:2] not in world.wanted() or cluster == LOCAL or world.entries[cluster].state != "active":
        return False
    must, may = world.judge.truth(cluster, family)
    if service in world.failover and active_sources(world, service) != {cluster}:
        return False
    return must == may == world.judge.published(group)


def active_sources(world: World, service: str) -> set[str]:
    """The sources that a failover Service may publish in a quiet world: the first with endpoints; all if uncertain."""
    sources = [cluster for name, cluster in sorted(world.wanted()) if name == service]
    order = [source for source in world.sources[service] if source in sources]
    states = {source: world.entries[source].state if source != LOCAL else "active" for source in order}
    if "frozen" in states.values():
        return set(order)
    for source in order:
        if states[source] == "active" and any(
            world.judge.truth(source, family)[1] for family in FAMILIES.get(service, ("IPv4",))
        ):
            return {source}
    return set(order)


def check_end(world: World) -> None:
    """Compare the published endpoints with the true state.

    Raises:
        AssertionError: they differ.
    """
    wanted, judge = world.wanted(), world.judge
    dropped = sum(not entry.present for entry in world.entries.values())
    dropped += len(SERVICES) - len({service for service, _ in wanted})
    for service in SERVICES:
        shown = [slice_ for slice_ in judge.slices.values() if slice_.group[0] == service]
        every = {address for slice_ in shown for address in slice_.endpoints}
        counted = [address for slice_ in shown for address in slice_.endpoints]
        assert len(counted) == len(every), f"{service}: published twice: {sorted(counted)}"
    for group in _groups(world):
        service, cluster, family = group
        published = judge.published(group)
        state = world.entries[cluster].state if cluster != LOCAL and world.entries[cluster].present else "active"
        if state == "frozen":
            continue
        if group[:2] not in wanted:
            assert not published or dropped > 1, f"{group} is not in the registry and still publishes {published}"
            continue
        if state == "standby" or (service in world.failover and cluster not in active_sources(world, service)):
            assert not published, "\n".join([f"{group} should be empty: {sorted(published)}", *_facts(world, group)])
            continue
        must, may = judge.truth(cluster, family)
        if service in world.failover and len(active_sources(world, service)) > 1:
            must = set()
        every = {a for slice_ in judge.slices.values() if slice_.group[0] == service for a in slice_.endpoints}
        missing, extra = must - every, published - may
        assert not missing, "\n".join([f"{group} lacks {sorted(missing)}", *_facts(world, group)])
        # Withheld until approved (FilteredEmpty). An address that another writer added has no Node, so a hub that
        # adopts it cannot know whether it is gone either.
        strange = any((service, address) in judge.tampered for address in published)
        held = not must and ((cluster != LOCAL and world.nodes(cluster)) or strange)
        assert not extra or held, "\n".join([f"{group} still has {sorted(extra)}", *_facts(world, group)])
        _check_slices(world, group)
    assert world.hub.slices.get("one-foreign", namespace="edge")["metadata"]["labels"] == FOREIGN


def _check_slices(world: World, group: tuple[str, str, str]) -> None:
    """Check everything in the slices except addresses: ports, owner, conditions."""
    service = world.hub.services.get(group[0], namespace="edge")
    for slice_ in [slice_ for slice_ in world.judge.slices.values() if slice_.group == group]:
        obj = world.hub.slices.get(slice_.name, namespace="edge")
        ports = [(port["port"], port["protocol"]) for port in obj["ports"] or ()]
        assert ports == [(30443, "TCP")], f"{slice_.name} has the ports {ports}"
        owners = [owner["uid"] for owner in obj["metadata"]["ownerReferences"]]
        assert owners == [service["metadata"]["uid"]], f"{slice_.name} belongs to {owners}"
        assert obj["metadata"]["annotations"]["endpointslice-hub/lease"] == "default/endpointslice-hub-default"
        for address, conditions in slice_.endpoints.items():
            good = world.pods.get(address, True) if group[1] == LOCAL else True
            assert dict(conditions)["ready"] is good, f"{slice_.name}: {address} is {dict(conditions)}"


def _facts(world: World, group: tuple[str, str, str]) -> list[str]:
    """Facts that help to understand why a group is wrong, including the hub's own findings."""
    service, cluster, family = group
    facts = [f"pods: {world.pods}"]
    if cluster != LOCAL:
        facts = [f"nodes: {world.nodes(cluster)}", f"cloud: {world.clouds[cluster].addresses}"]
    facts += [f"must, may: {world.judge.truth(cluster, family)}"]
    facts += [f"registry: {world.sources} {world.entries}, failover {world.failover}"]
    for process in world.processes.values():
        if process.hub is not None:
            last = process.hub.reconciler.last(TargetKey("edge", service))
            facts += [f"{process.name} writes: {process.hub.writing}; {last.status if last else 'no pass'}"]
            facts += [f"  {finding.reason}: {finding.message}" for finding in (last.findings if last else ())]
            facts += [
                f"  {name}: {unit.status.state} {unit.status.error}"
                for name, unit in process.hub.fleet.clusters.items()
            ]
    return [*facts, *world.judge.history[-25:]]


def _own(cluster: str, number: int) -> str:
    return f"10.{NAMES.index(cluster) + 1}.0.{number + 1}"


def _odd(number: int) -> str:
    """An address that other clusters may have too, or that no cluster may have."""
    return SHARED.format(number + 1) if number < 6 else f"192.168.7.{number}"
