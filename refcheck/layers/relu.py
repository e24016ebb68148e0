"""ReLU, sigmoid and tanh: activations whose derivative is a function of their output g."""

from refcheck.arrays import exp, tanh
from refcheck.sizes import B, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(z):
    g = z * (z > 0)
    return g, dict(g=g)


def backward(dg, s):
    return dict(z=dg * (s["g"] > 0))  # at z = 0, where there is no derivative, torch takes 0 too


def forward_sigmoid(z):
    g = 1 / (1 + exp(-z))
    return g, dict(g=g)


def backward_sigmoid(dg, s):
    return dict(z=dg * s["g"] * (1 - s["g"]))


def forward_tanh(z):
    g = tanh(z)
    return g, dict(g=g)


def backward_tanh(dg, s):
    return dict(z=dg * (1 - s["g"] ** 2))


INPUTS = dict(z=activation(B, T, M))
RELU = Pair("relu", forward, backward, INPUTS, output="g")
SIGMOID = Pair("sigmoid", forward_sigmoid, backward_sigmoid, INPUTS, output="g")
TANH = Pair("tanh", forward_tanh, backward_tanh, INPUTS, output="g")


def relu(z):
    import torch.nn.functional as F

    return F.relu(z)


def sigmoid(z):
    return z.sigmoid()


def eager_tanh(z):
    return z.tanh()


SAVES = Saves(RELU, at=dict(g="ReluBackward0.result"))
SAVES_SIGMOID = Saves(SIGMOID, at=dict(g="SigmoidBackward0.result"))
SAVES_TANH = Saves(TANH, at=dict(g="TanhBackward0.result"))

LAYER = Layer(
    __name__,
    title=dict(zh="ReLU、sigmoid 与 tanh", en="ReLU, sigmoid and tanh"),
    implementations=(
        Implementation("eager", dict(zh="F.relu", en="F.relu"), relu, cpu=SAVES, cuda=SAVES),
        Implementation(
            "sigmoid", dict(zh="torch.sigmoid", en="torch.sigmoid"), sigmoid, cpu=SAVES_SIGMOID, cuda=SAVES_SIGMOID
        ),
        Implementation("tanh", dict(zh="torch.tanh", en="torch.tanh"), eager_tanh, cpu=SAVES_TANH, cuda=SAVES_TANH),
    ),
)
