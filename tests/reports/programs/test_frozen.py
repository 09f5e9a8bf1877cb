from torch import nn


def touch(module):
    module.weight.data.mul_(2)


def test_frozen(inplace):
    teacher = nn.Linear(2, 1, bias=False)
    nn.init.ones_(teacher.weight)
    with inplace.frozen(teacher):
        touch(teacher)
