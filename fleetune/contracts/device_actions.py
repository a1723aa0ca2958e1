"""The actions of a device in one round, in order."""

from fleetune.contracts.plan import BACKWARD, FORWARD, Action, Plan, parse_action


def one_forward_one_backward(lane: str, segment: int, warmup: int, micro_batches: int) -> tuple[Action, ...]:
    """1F1B schedule with K warm-up forwards: min(K, M) forwards, then backward 0, forward K, backward 1, ..."""

    def act(letter: str, micro_batch: int) -> Action:
        return Action(lane=lane, segment=segment, letter=letter, micro_batch=micro_batch)

    warm = min(warmup, micro_batches)
    actions = [act(FORWARD, m) for m in range(warm)]
    for m in range(micro_batches):
        actions.append(act(BACKWARD, m))
        if warm + m < micro_batches:
            actions.append(act(FORWARD, warm + m))
    return tuple(actions)


def actions_of(plan: Plan, device: str) -> tuple[Action, ...]:
    """Actions of a device in one round: the plan's explicit order, or 1F1B for one lane after the other."""
    for order in plan.order:
        if order.device == device:
            return tuple(parse_action(spelling) for spelling in order.actions)
    mine: list[Action] = []
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if device in segment.devices:
                mine += one_forward_one_backward(lane.name, index, segment.warmup, plan.micro_batches_of(lane))
    return tuple(mine)
