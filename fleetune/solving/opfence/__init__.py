"""Kind "opfence": where each operator of a network's graph runs, across clusters of uneven links.

After FusionLLM (Tang et al., 2024): eq. (3) is what is minimised, OP-Fence (section 4) one of the methods, AdaTopK
(section 5, eq. (7)) what each link sends; the format is the project's contract. One integer program for all of it was
set aside: hundreds of operators on 48 devices are far beyond what a solver closes in seconds.
"""
