"""Models: functions of the samples' shape, the number of classes, and settings."""

from torch import nn


def make_net(input_shape, classes, channels=8):
    """A convolution with GroupNorm for grey images [n, H, W]; ``channels`` is even."""
    return nn.Sequential(
        nn.Unflatten(1, (1, input_shape[0])),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.GroupNorm(2, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * (input_shape[0] // 2) * (input_shape[1] // 2), classes),
    )
