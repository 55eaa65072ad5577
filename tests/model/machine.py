"""What may happen, as rules of a hypothesis state machine; a failure shrinks to a script of these."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hub.model import TargetKey
from tests.model.cloud import six
from tests.model.world import FAMILIES, FOREIGN, LOCAL, NAMES, SERVICES, SHARED, World

LAG = 120.0
"""Seconds until a hub has heard of everything: it is silent for 80 s at most, and tries again after 30 s."""
QUIET = 360.0
"""Seconds without a write after which nobody is to write any more: a hold of 300 s, a retry of 60 s."""
LONGEST = 1500.0
"""Seconds until it must be quiet."""
REST = 75.0
"""Seconds in which a hub that was started anew may write nothing."""

clusters = st.sampled_from(NAMES)
machines = st.sampled_from([f"n{number}" for number in range(6)])
services = st.sampled_from(sorted(SERVICES))
verbs = st.sampled_from(["create", "update", "delete"])
numbers = st.integers(0, 5)
SECONDS = [0.0, 0.002, 0.02, 0.3, 1.1, 3.0, 6.0, 12.0, 25.0, 40.0, 75.0, 130.0, 320.0]


class HubMachine(RuleBasedStateMachine):
    """One world, and what happens in it."""

    steps: ClassVar[int] = 0
    """Run by all machines of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @property
    def it(self) -> World:
        """The world."""
        assert self.world is not None
        return self.world

    @initialize(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 5))
    def begin(self, seed: int, size: int) -> None:
        """Clusters of a few nodes each, and a hub that has published them."""
        world = self.world = World(seed)
        for name in NAMES:
            for number in range(size):
                world.clouds[name].addresses[f"n{number}"] = _own(name, number)
                world.set_node(name, f"n{number}")
        world.start()
        world.advance(8.0)

    # --- time ---------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(SECONDS))
    def time_goes_by(self, seconds: float) -> None:
        """The hub may do what it has to do."""
        self.it.advance(seconds)

    @rule(seconds=st.sampled_from(SECONDS[:7]))
    def a_moment_goes_by(self, seconds: float) -> None:
        """Most of what matters happens within a few seconds."""
        self.it.advance(seconds)

    @rule(seconds=st.sampled_from(SECONDS[4:11]))
    def a_while_goes_by(self, seconds: float) -> None:
        """What is repeated from time to time is repeated."""
        self.it.advance(seconds)

    @rule(hours=st.sampled_from([-1.0, 0.0, 1.0]))
    def the_wall_clock_is_set(self, hours: float) -> None:
        """By somebody, or by NTP."""
        self.it.set_wall_clock(hours * 3600.0)

    # --- nodes --------------------------------------------------------------------------------------

    @rule(cluster=clusters, node=machines, number=st.integers(0, 11), kind=st.sampled_from(["own", "own", "any"]))
    def a_node_comes(self, cluster: str, node: str, number: int, kind: str) -> None:
        """Or has another address from now on, where it is there already."""
        addresses = self.it.clouds[cluster].addresses
        address = _own(cluster, number) if kind == "own" else _odd(number)
        if address in addresses.values():
            return
        addresses[node] = address
        self.it.set_node(cluster, node)

    @rule(cluster=clusters, node=machines)
    def a_node_goes(self, cluster: str, node: str) -> None:
        """Deleted."""
        if node in self.it.nodes(cluster):
            self.it.drop_node(cluster, node)

    @rule(cluster=clusters)
    def all_nodes_go(self, cluster: str) -> None:
        """Scaled to nothing, or an answer that is a mistake."""
        for node in self.it.nodes(cluster):
            self.it.drop_node(cluster, node)

    @rule(cluster=clusters, node=machines, ready=st.booleans())
    def a_node_flips(self, cluster: str, node: str, ready: bool) -> None:
        """Its kubelet is heard, or not."""
        if node in self.it.nodes(cluster):
            self.it.set_node(cluster, node, ready=ready)

    @rule(cluster=clusters, node=machines)
    def a_kubelet_reports(self, cluster: str, node: str) -> None:
        """Nothing new."""
        if node in self.it.nodes(cluster):
            self.it.report(cluster, node)

    @rule(number=numbers, what=st.sampled_from(["comes", "goes", "flips"]))
    def a_pod_changes(self, number: int, what: str) -> None:
        """Of the Service in the hub cluster that is copied."""
        pods, address = self.it.pods, f"10.60.0.{number + 1}"
        self.it.judge.observe()
        if what == "goes":
            pods.pop(address, None)
        elif what == "comes" or address in pods:
            pods[address] = what == "comes" or not pods[address]
        self.it.put_pods()

    # --- clouds -------------------------------------------------------------------------------------

    @rule(cluster=clusters, mode=st.sampled_from(["ok", "ok", "fail", "partial", "empty", "hang", "defect"]))
    def a_cloud_answers_so(self, cluster: str, mode: Any) -> None:
        """From now on."""
        self.it.judge.observe()
        self.it.clouds[cluster].mode = mode
        self.it.judge.observe()

    @rule(cluster=clusters, node=machines)
    def a_cloud_forgets(self, cluster: str, node: str) -> None:
        """A machine has no address any more."""
        if node in self.it.clouds[cluster].addresses:
            self.it.clouds[cluster].addresses[node] = None
            self.it.judge.observe()

    # --- remote API servers -------------------------------------------------------------------------

    @rule(cluster=clusters, how=st.sampled_from(["dead", "hang", "garbage", "401", "403", "429", "500", "503"]))
    def a_cluster_breaks(self, cluster: str, how: str) -> None:
        """It makes no statement from now on."""
        self.it.break_cluster(cluster, how)

    @precondition(lambda self: self.world is not None and self.world.down)
    @rule(number=numbers)
    def a_cluster_heals(self, number: int) -> None:
        """One of those that are broken."""
        down = sorted(self.it.down)
        self.it.heal_cluster(down[number % len(down)])

    @rule(cluster=clusters, how=st.sampled_from(["reset", "end", "expire", "half-line"]))
    def a_watch_ends(self, cluster: str, how: Any) -> None:
        """In one of several ways."""
        if cluster not in self.it.down:
            self.it.remotes[cluster].cut_stream(how=how)

    @rule(cluster=clusters)
    def the_past_is_forgotten(self, cluster: str) -> None:
        """Every resourceVersion is too old: as after a restart."""
        self.it.remotes[cluster].compact()
        self.it.forgotten(cluster)

    @rule(cluster=clusters)
    def etcd_is_restored(self, cluster: str) -> None:
        """From a backup: objects and resourceVersions are older ones again."""
        self.it.turn_back(cluster)

    # --- the hub's API server -----------------------------------------------------------------------

    @rule(status=st.sampled_from([409, 422, 429, 500, 503]), count=st.integers(1, 4), verb=verbs)
    def a_write_is_refused(self, status: int, count: int, verb: str) -> None:
        """The next few."""
        self.it.hub.fail_next(
            count, status=status, verb=verb, resource="endpointslices", retry_after=2.0 if status == 429 else None
        )

    @rule(count=st.integers(1, 3), verb=verbs, resource=st.sampled_from(["endpointslices", "endpointslices", "leases"]))
    def an_answer_is_lost(self, count: int, verb: str, resource: str) -> None:
        """The write is committed, and the connection drops."""
        self.it.hub.lose_answer(count, verb=verb, resource=resource)

    @rule(count=st.integers(1, 3), verb=verbs)
    def a_write_is_dropped(self, count: int, verb: str) -> None:
        """The connection drops, and nothing was done."""
        self.it.hub.drop_next(count, verb=verb, resource="endpointslices")

    @rule(what=st.sampled_from(["hang", "refuse"]))
    def the_hub_cluster_breaks(self, what: str) -> None:
        """All of it."""
        if what == "hang":
            self.it.hub.hang()
        else:
            self.it.hub.refuse(503)

    @rule()
    def the_hub_cluster_heals(self) -> None:
        """All faults of it end."""
        self.it.hub.heal()

    @rule(how=st.sampled_from(["reset", "end", "expire", "half-line"]), old=st.booleans())
    def a_watch_of_the_hub_cluster_ends(self, how: Any, old: bool) -> None:
        """And perhaps the past is forgotten, too."""
        if old:
            self.it.hub.compact()
        self.it.hub.cut_stream(how=how)

    @rule()
    def an_operator_approves(self) -> None:
        """Whatever is withheld now."""
        self.it.approve()

    # --- others who write ---------------------------------------------------------------------------

    @rule(number=numbers, what=st.sampled_from(["delete", "empty", "less", "more", "unlabel", "port"]))
    def somebody_edits_a_slice(self, number: int, what: str) -> None:
        """One of the hub's."""
        self.it.tamper(number, what)

    @rule(number=st.integers(1, 9))
    def somebody_edits_its_own_slice(self, number: int) -> None:
        """Another controller, of the same Service."""
        with self.it.judge.world():
            self.it.hub.slices.put(self.it.foreign_slice(f"10.66.0.{number}"))

    @rule(service=services)
    def a_service_is_made_anew(self, service: str) -> None:
        """Deleted, its slices collected, and created again or not."""
        it = self.it
        with it.judge.world():
            if service in {each["metadata"]["name"] for each in it.hub.services.list(namespace="edge")}:
                it.hub.services.delete(service, namespace="edge")
            else:
                it.put_service(service)
        it.trouble()

    # --- the registry -------------------------------------------------------------------------------

    @rule(service=services, cluster=clusters)
    def the_registry_toggles_a_source(self, service: str, cluster: str) -> None:
        """A cluster is a source of a Service, or not any more; without one the Service is not in it."""
        sources = self.it.sources[service]
        if cluster in sources:
            sources.remove(cluster)
        elif cluster in SERVICES[service]:
            sources.append(cluster)
        self.it.write_registry()

    @rule(cluster=clusters)
    def the_registry_toggles_a_cluster(self, cluster: str) -> None:
        """It is in the file, or not."""
        entry = self.it.entries[cluster]
        entry.present = not entry.present
        self.it.write_registry()

    @rule(cluster=clusters, state=st.sampled_from(["active", "active", "frozen", "standby"]))
    def the_registry_sets_a_state(self, cluster: str, state: str) -> None:
        """Of a cluster."""
        self.it.entries[cluster].state = state
        self.it.write_registry()

    @rule(cluster=clusters, policy=st.sampled_from(["keep", "not-ready", "remove"]))
    def the_registry_sets_a_policy(self, cluster: str, policy: str) -> None:
        """For when the cluster is unreachable."""
        self.it.entries[cluster].unreachable = policy
        self.it.write_registry()

    @rule(service=services)
    def the_registry_sets_a_strategy(self, service: str) -> None:
        """Merge becomes failover, or the other way round."""
        self.it.failover ^= {service}
        self.it.write_registry()

    @rule(cluster=clusters, number=numbers)
    def the_registry_excludes_an_address(self, cluster: str, number: int) -> None:
        """Or no longer."""
        self.it.entries[cluster].excluded ^= {_own(cluster, number)}
        self.it.write_registry()

    @rule()
    def the_registry_breaks(self) -> None:
        """Somebody saves half a file."""
        self.it.break_registry()

    # --- hubs ---------------------------------------------------------------------------------------

    @rule(wait=st.sampled_from([0.0, 1.0, 30.0]))
    def a_hub_crashes(self, wait: float) -> None:
        """And another one is started after a while."""
        it = self.it
        it.crash(min(it.processes))
        it.advance(wait)
        if not it.processes:
            it.start()

    @rule(write=st.integers(1, 6))
    def a_hub_crashes_at_a_write(self, write: int) -> None:
        """Right when it is committed: the answer is never seen, and no further write is made."""
        self.it.crash_at(write)

    @rule()
    def a_hub_is_restarted(self) -> None:
        """In good order."""
        self.it.stop(min(self.it.processes))
        if not self.it.processes:
            self.it.start()

    @precondition(lambda self: self.world is not None and len(self.world.processes) < 2)
    @rule()
    def a_replica_is_started(self) -> None:
        """It stands by."""
        self.it.start()

    @rule()
    def the_lease_moves(self) -> None:
        """Somebody else holds it, and never renews."""
        self.it.steal_lease()

    @rule()
    def the_lease_is_out_of_reach(self) -> None:
        """For whoever writes, until another one does, or it does itself again."""
        self.it.cut_off_lease()

    # --- what holds ---------------------------------------------------------------------------------

    @invariant()
    def nothing_wrong_was_done(self) -> None:
        """Each write was allowed."""
        type(self).steps += 1
        if self.world is not None:
            self.world.judge.verdict()

    def teardown(self) -> None:
        """All is healed; then what should be published is, and nothing more is written, by a new hub neither."""
        world, self.world = self.world, None
        if world is None:
            return
        try:
            settle(world)
        finally:
            world.close()


def settle(world: World) -> None:
    """Heal everything, wait, and check the end.

    Raises:
        AssertionError: something else is published than should be, or it is not left alone.
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
    assert _write_requests(world) == asked, "a hub that was started anew asks for writes that change nothing"
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
        assert elapsed < LONGEST, _more(world, f"and no end of it after {elapsed:g} s", 0)


def _more(world: World, when: str, before: int) -> str:
    count = world.judge.writes - before
    return "\n".join([f"{count} slices were written {when}", *world.judge.history[-25:]])


def check_least_work(world: World) -> None:
    """One node more in every cluster, then one less: one write for each Service and family that publishes it.

    Raises:
        AssertionError: there were others, or none.
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
            names = [each.name for each in world.judge.slices.values() if each.group == group]
            writes = {name: world.judge.written.get(name, 0) for name in names}
            own = _own(group[1], 99) if group[2] == "IPv4" else six(_own(group[1], 99))
            assert (own in world.judge.published(group)) is ready, f"{group}: {own} is there: {not ready}"
            assert sum(writes.values()) <= 1, _more(world, f"for one node of {group[1]}: {writes}", world.judge.writes)


def _groups(world: World) -> list[tuple[str, str, str]]:
    return [
        (service, cluster, family)
        for service, cluster in world.possible()
        for family in FAMILIES.get(service, ("IPv4",))
    ]


def _publishes(world: World, group: tuple[str, str, str]) -> bool:
    """Whether a group is one whose nodes are published, all of them, and nothing of it is withheld."""
    service, cluster, family = group
    if group[:2] not in world.wanted() or cluster == LOCAL or world.entries[cluster].state != "active":
        return False
    must, may = world.judge.truth(cluster, family)
    if service in world.failover and active_sources(world, service) != {cluster}:
        return False
    return must == may == world.judge.published(group)


def active_sources(world: World, service: str) -> set[str]:
    """Those that a failover Service may publish once all is quiet: the first that has something; all if unsure."""
    sources = [each for name, each in sorted(world.wanted()) if name == service]
    order = [each for each in world.sources[service] if each in sources]
    states = {each: world.entries[each].state if each != LOCAL else "active" for each in order}
    if "frozen" in states.values():
        return set(order)
    for each in order:
        if states[each] == "active" and any(
            world.judge.truth(each, family)[1] for family in FAMILIES.get(service, ("IPv4",))
        ):
            return {each}
    return set(order)


def check_end(world: World) -> None:
    """Compare what is published with what is true.

    Raises:
        AssertionError: it is something else.
    """
    wanted, judge = world.wanted(), world.judge
    dropped = sum(not entry.present for entry in world.entries.values())
    dropped += len(SERVICES) - len({service for service, _ in wanted})
    for service in SERVICES:
        shown = [each for each in judge.slices.values() if each.group[0] == service]
        every = {address for each in shown for address in each.endpoints}
        counted = [address for each in shown for address in each.endpoints]
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
        every = {a for each in judge.slices.values() if each.group[0] == service for a in each.endpoints}
        missing, extra = must - every, published - may
        assert not missing, "\n".join([f"{group} lacks {sorted(missing)}", *_facts(world, group)])
        # Withheld until somebody approves it (FilteredEmpty). What somebody else put there has no Node that could
        # be gone, so a hub that adopts it with the rest cannot tell, either.
        strange = any((service, address) in judge.tampered for address in published)
        held = not must and ((cluster != LOCAL and world.nodes(cluster)) or strange)
        assert not extra or held, "\n".join([f"{group} still has {sorted(extra)}", *_facts(world, group)])
        _check_slices(world, group)
    assert world.hub.slices.get("one-foreign", namespace="edge")["metadata"]["labels"] == FOREIGN


def _check_slices(world: World, group: tuple[str, str, str]) -> None:
    """All but the addresses, too: ports, owner, conditions."""
    service = world.hub.services.get(group[0], namespace="edge")
    for each in [each for each in world.judge.slices.values() if each.group == group]:
        obj = world.hub.slices.get(each.name, namespace="edge")
        ports = [(port["port"], port["protocol"]) for port in obj["ports"] or ()]
        assert ports == [(30443, "TCP")], f"{each.name} has the ports {ports}"
        owners = [owner["uid"] for owner in obj["metadata"]["ownerReferences"]]
        assert owners == [service["metadata"]["uid"]], f"{each.name} belongs to {owners}"
        assert obj["metadata"]["annotations"]["endpointslice-hub/lease"] == "default/endpointslice-hub-default"
        for address, conditions in each.endpoints.items():
            good = world.pods.get(address, True) if group[1] == LOCAL else True
            assert dict(conditions)["ready"] is good, f"{each.name}: {address} is {dict(conditions)}"


def _facts(world: World, group: tuple[str, str, str]) -> list[str]:
    """What helps to understand why a group is not as it should be; what the hub says of itself, too."""
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
            facts += [f"  {each.reason}: {each.message}" for each in (last.findings if last else ())]
            facts += [
                f"  {name}: {unit.status.state} {unit.status.error}"
                for name, unit in process.hub.fleet.clusters.items()
            ]
    return [*facts, *world.judge.history[-25:]]


def _own(cluster: str, number: int) -> str:
    return f"10.{NAMES.index(cluster) + 1}.0.{number + 1}"


def _odd(number: int) -> str:
    """An address that others may have, too, or that no cluster may have."""
    return SHARED.format(number + 1) if number < 6 else f"192.168.7.{number}"
