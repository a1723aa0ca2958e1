"""Slow reference implementation of the event simulation, written from the contract alone, without `fleetune.clock`
code."""

from typing import Any

from tests.support.clock.pipelines import Pipeline


def order_of(warmup: int, micro_batches: int) -> list[tuple[str, int]]:
    """1F1B order with `warmup` forwards first."""
    forwards = [("F", m) for m in range(micro_batches)]
    backwards = [("B", m) for m in range(micro_batches)]
    k = min(warmup, micro_batches)
    order, forwards = forwards[:k], forwards[k:]
    while backwards:
        order.append(backwards.pop(0))
        if forwards:
            order.append(forwards.pop(0))
    return order


def play(pipeline: Pipeline) -> tuple[int, set[tuple[Any, ...]]]:
    """Simulate a round: its ns, and every ("task", stage, place, letter, m, start, end) and ("transfer", sender,
    receiver, letter, m, bytes, start, end)."""
    world = _World(pipeline)
    now = 0
    world.instant(now)
    while world.anything_left():
        now = world.next_instant(now)
        world.instant(now)
    return world.finish(), world.log


class _World:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.micro_batches = pipeline.micro_batches
        self.holds: dict[tuple[int, int], set[int]] = {}
        self.todo: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for p, stage in enumerate(pipeline.stages):
            first = 0
            for place, member in enumerate(stage.members):
                self.holds[p, place] = set(range(first, first + member.samples))
                first += member.samples
                self.todo[p, place] = list(member.order) or order_of(stage.warmup, pipeline.micro_batches)
        self.running: dict[tuple[int, int], tuple[int, str, int]] = {}
        self.waiting: list[tuple[Any, ...]] = []
        self.on_the_wire: list[tuple[int, int, tuple[int, int], tuple[int, int], str, int]] = []
        self.has: dict[tuple[tuple[int, int], str, int], set[int]] = {}
        self.log: set[tuple[Any, ...]] = set()
        self.last_end = dict.fromkeys(range(len(pipeline.stages)), 0)
        self.latest = 0

    def anything_left(self) -> bool:
        return bool(any(self.todo.values()) or self.running or self.waiting or self.on_the_wire)

    def next_instant(self, now: int) -> int:
        """Time of the next end or arrival; ValueError if there is none."""
        ends = [end for end, _, _ in self.running.values()]
        return min(t for t in [*ends, *(t for flight in self.on_the_wire for t in flight[:2])] if t > now)

    def instant(self, now: int) -> None:
        first = True
        while True:
            ended = self.handle_ends(now)
            if not (ended or first):
                return
            first = False
            self.look_through(now)
            self.start_tasks(now)

    def handle_ends(self, now: int) -> bool:
        ended = False
        for seat, (end, letter, m) in list(self.running.items()):
            if end == now:
                ended = True
                del self.running[seat]
                self.last_end[seat[0]] = max(self.last_end[seat[0]], now)
                self.latest = max(self.latest, now)
                self.offer(seat, letter, m, now)
        for flight in list(self.on_the_wire):
            end, arrival, sender, receiver, letter, m = flight
            if arrival == now and end <= now:
                ended = True
                self.on_the_wire.remove(flight)
                got = self.holds[sender] & self.holds[receiver]
                self.has.setdefault((receiver, letter, m), set()).update(got)
                self.latest = max(self.latest, now)
            elif end == now:
                ended = True
                self.on_the_wire[self.on_the_wire.index(flight)] = (-1, arrival, sender, receiver, letter, m)
        return ended

    def offer(self, sender: tuple[int, int], letter: str, m: int, now: int) -> None:
        stage = sender[0] + (1 if letter == "F" else -1)
        for receiver in self.holds:
            if receiver[0] == stage and self.holds[sender] & self.holds[receiver]:
                key = (now, m, min(sender[0], stage), sender[1], receiver[1])
                self.waiting.append((*key, sender, receiver, letter))
        self.waiting.sort()

    def look_through(self, now: int) -> None:
        for entry in list(self.waiting):
            m, sender, receiver, letter = entry[1], *entry[5:]
            held = [flight for flight in self.on_the_wire if flight[0] >= now]
            if any(flight[2] == sender or flight[3] == receiver for flight in held):
                continue
            self.waiting.remove(entry)
            low = self.pipeline.stages[min(sender[0], receiver[0])]
            each = low.output_bytes if letter == "F" else low.gradient_bytes
            size = each * len(self.holds[sender] & self.holds[receiver])
            a = self.pipeline.stages[sender[0]].members[sender[1]].device
            b = self.pipeline.stages[receiver[0]].members[receiver[1]].device
            end = now + round(size * 1e9 / self.pipeline.bandwidth_bytes_per_s[a][b])
            arrival = end + round(self.pipeline.latency_s[a][b] * 1e9)
            self.on_the_wire.append((end, arrival, sender, receiver, letter, m))
            self.log.add(("transfer", sender, receiver, letter, m, size, now, end))

    def start_tasks(self, now: int) -> None:
        last = len(self.pipeline.stages) - 1
        for seat, todo in self.todo.items():
            if seat in self.running or not todo:
                continue
            letter, m = todo[0]
            free = (seat[0] == 0 and letter == "F") or (seat[0] == last and letter == "B")
            if not free and self.has.get((seat, letter, m), set()) != self.holds[seat]:
                continue
            todo.pop(0)
            member = self.pipeline.stages[seat[0]].members[seat[1]]
            end = now + (member.forward_ns if letter == "F" else member.backward_ns)
            self.running[seat] = (end, letter, m)
            self.log.add(("task", *seat, letter, m, now, end))

    def finish(self) -> int:
        latest = self.latest
        for p, stage in enumerate(self.pipeline.stages):
            group = [member.device for member in stage.members]
            if len(group) > 1:
                pairs = [(a, b) for a in group for b in group if a != b]
                latency = max(self.pipeline.latency_s[a][b] for a, b in pairs)
                slowest = min(self.pipeline.bandwidth_bytes_per_s[a][b] for a, b in pairs)
                g = len(group)
                seconds = 2 * (g - 1) * (latency + stage.trainable_bytes / (g * slowest))
                latest = max(latest, self.last_end[p] + round(seconds * 1e9))
        return latest
