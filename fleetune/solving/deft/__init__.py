"""Kind "deft": which device tunes which block, and with how much bandwidth, so that the slowest ends soonest.

After LoLa-DEFT (Wu, H., Chen, X., Huang, K., 2024: low-latency device-edge cooperative fine-tuning); the format is the
project's contract. The paper takes the joint problem for NP-hard and ascends its dual. With one block per device it is
not: what a pair needs of the band to end by T is one number, so whether T can be kept is one assignment problem, and
the least T is found exactly. Set aside: mixed-integer solvers, which are slower and prove less.
"""
