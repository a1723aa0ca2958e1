"""What the paper prints of profiling (Ye, S. et al., Asteroid, MobiCom 2024, Table 8 and §5.7)."""

PROFILING_S = {"Jetson Nano": 82 * 60.0, "Jetson TX2": 51 * 60.0, "Jetson NX": 25 * 60.0}
"""Table 8: all four models together; times of single models are not printed."""
LARGEST_BATCH = {"EfficientNet-B1": 256, "MobileNetV2": 256, "Bert-small": 256, "ResNet50": 32}
"""Batch sizes go from 1 to this; which lie between is not printed."""
