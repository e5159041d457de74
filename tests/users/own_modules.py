"""Modules as people write them, for the tests of this folder."""

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a way around them; names as in torchvision."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += around
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 with BatchNorm; layers and names as in torchvision."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = 64
        for number, outside in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if number == 1 else 2
            blocks = [BasicBlock(inside, outside, stride), BasicBlock(outside, outside, 1)]
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
            inside = outside
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(self.avgpool(x).flatten(1))


class Segmenter(nn.Module):
    """A class for every pixel: [n, 1, H, W] -> [n, 3, H, W]."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())
