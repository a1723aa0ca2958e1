"""Kind "deft": assign each block to a device and divide the bandwidth so that the slowest pair finishes earliest.

Source: LoLa-DEFT (Wu, H., Chen, X., Huang, K., 2024: low-latency device-edge cooperative fine-tuning). The paper calls
the joint problem NP-hard and ascends its dual. With one block per device it is polynomial: the share of the band that a
pair needs to finish by T is one number, so feasibility of T is one assignment problem, and the least T is found
exactly. Rejected alternative: mixed-integer solvers, which are slower and prove less.
"""
