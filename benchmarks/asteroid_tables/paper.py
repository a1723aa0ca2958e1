"""Numbers printed in the Asteroid paper (Ye, S. et al., MobiCom 2024, doi:10.1145/3636534.3649363)."""

from typing import NamedTuple

EFFICIENTNET, MOBILENET, RESNET, BERT = "EfficientNet-B1", "MobileNetV2", "ResNet50", "Bert-small"


class Volume(NamedTuple):
    """Table 2: MB sent between five Nanos in a mini-batch."""

    hdp: float
    hpp: float


VOLUMES = {EFFICIENTNET: Volume(171.4, 76.2), MOBILENET: Volume(98.0, 52.1), RESNET: Volume(576.2, 212.4)}
VOLUME_RATIOS = (1.9, 2.7)


class SpeedUp(NamedTuple):
    """Table 4: throughput of Asteroid over the fastest device, data parallelism and pipeline parallelism."""

    device: float
    dp: float
    pp: float


Link = tuple[str, int]
"""Environment and Mbit/s."""
LINKS: tuple[Link, ...] = (("A", 100), ("B", 100), ("B", 1000))
SPEED_UPS: dict[str, dict[Link, SpeedUp]] = {
    EFFICIENTNET: dict(
        zip(LINKS, (SpeedUp(4.4, 2.1, 2.8), SpeedUp(3.0, 4.8, 9.7), SpeedUp(3.7, 2.1, 1.4)), strict=True)
    ),
    MOBILENET: dict(zip(LINKS, (SpeedUp(4.5, 1.5, 3.5), SpeedUp(3.2, 2.3, 11.2), SpeedUp(3.8, 1.2, 1.3)), strict=True)),
    RESNET: dict(zip(LINKS, (SpeedUp(3.4, 3.6, 5.8), SpeedUp(1.5, 6.1, 12.2), SpeedUp(3.7, 2.9, 3.1)), strict=True)),
    BERT: dict(zip(LINKS, (SpeedUp(3.5, 6.4, 1.0), SpeedUp(1.3, 6.8, 1.0), SpeedUp(3.9, 4.2, 1.3)), strict=True)),
}

PLANNING_S = {EFFICIENTNET: 480.0, MOBILENET: 261.0, RESNET: 192.0, BERT: 69.0}
"""Table 7: planning time for environment C on a Jetson NX."""
OVER_SYSTEMS = {"eddl": (1.6, 6.9), "pipedream": (1.3, 2.1), "dapple": (1.2, 1.8), "hetpipe": (1.2, 1.9)}
"""§5.3: smallest and largest throughput of Asteroid over each system on environments B and C, all models."""
SCALING_OVER_DP = (1.3, 2.2)
"""§5.6: EfficientNet-B1 on up to 8 Nanos at 100 Mbit/s."""
