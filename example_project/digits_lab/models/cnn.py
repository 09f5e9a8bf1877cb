"""A convolutional classifier with one residual block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits_lab.data import CLASSES


class ConvUnit(nn.Module):
    """Convolution, batch normalisation and an in-place ReLU.

    The ReLU may overwrite the normalised tensor because BatchNorm needs its input, not its output.
    """

    def __init__(self, inputs: int, outputs: int, inplace: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """Two convolutions with the skip added in place to the second norm's output."""

    def __init__(self, channels: int, inplace: bool = True) -> None:
        super().__init__()
        self.first = ConvUnit(channels, channels, inplace)
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.activation = nn.ReLU(inplace=inplace)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(self.first(x)))
        if self.inplace:
            out += x
        else:
            out = out + x
        return self.activation(out)


class DigitCNN(nn.Module):
    """Stem, residual block, strided reduction, linear head."""

    def __init__(self, channels: int = 8, inplace: bool = True) -> None:
        super().__init__()
        self.stem = ConvUnit(1, channels, inplace)
        self.block = ResidualBlock(channels, inplace)
        self.pool = nn.MaxPool2d(2)
        self.widen = ConvUnit(channels, 2 * channels, inplace)
        self.head = nn.Linear(2 * channels * 16, CLASSES)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation, and a last norm that starts the residual branch at zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        self.block.norm.weight.data.zero_()
        self.head.weight.data.normal_(0.0, 0.01)
        self.head.bias.data.zero_()

    def features(self, x: Tensor) -> Tensor:
        """The flat vector that the head classifies."""
        x = self.block(self.stem(x))
        return self.widen(self.pool(x)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Labels in evaluation mode; the training mode is put back afterwards."""
        training = self.training
        self.eval()
        try:
            return self(x).argmax(-1)
        finally:
            self.train(training)
