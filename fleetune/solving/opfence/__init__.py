"""Kind "opfence": placement of a network's operator graph on clusters of devices with uneven links.

Source: FusionLLM (Tang et al., 2024): the objective is eq. (3), OP-Fence (section 4) is one of the methods, AdaTopK
(section 5, eq. (7)) compresses the links. Rejected alternative: one integer program for all of it; hundreds of
operators on 48 devices are beyond what a solver closes in seconds.
"""
