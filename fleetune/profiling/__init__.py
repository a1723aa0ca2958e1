"""Measures the costs of every unit of a model on every device of a fleet.

`profile` reads what preparation wrote and starts one `measuring_process` per device, all at once, each at its device's
site and within its limits; devices that an earlier run has measured are not measured again (`cache`). `timing`
runs units in order, forward and backward, in interleaved passes and keeps the minimum of each; a device too small for
the whole model measures it window by window. `head_scores` are of attention heads, for strategies that choose among
them, and computed only where the run asks for them.

Timing units in isolated loops was set aside: it is off by a third, where the sum over passes is within 5 % of a real
step.
"""
