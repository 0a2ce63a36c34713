"""Settings of problems outside their domain: the error names the setting, what is allowed and what was given."""

import pytest

from securefed.errors import ConfigError
from securefed.problems import Autoencoder, ConvolutionalNetwork, DenseNetwork, SoftmaxRegression, TorchModule


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SoftmaxRegression(l2="a"), "l2 must be a finite number of at least 0; got 'a'"),
        (lambda: SoftmaxRegression(l2=None), "l2 must be a finite number of at least 0; got None"),
        (lambda: SoftmaxRegression(initial_scale=-1), "initial_scale must be .*; got -1"),
        (lambda: SoftmaxRegression(precision="float16"), "must be one of 'float32', 'float64'; got 'float16'"),
        (
            lambda: DenseNetwork(hidden=5),
            r"hidden must be a list of at least one integer.*got 5. Write hidden=\(32, 32\)",
        ),
        (lambda: DenseNetwork(hidden=()), r"hidden must be .*got \(\)"),
        (lambda: DenseNetwork(hidden=(2.5,)), r"hidden must be .*got \(2.5,\)"),
        (lambda: DenseNetwork(hidden=("a",)), "hidden must be .*got"),
        (lambda: DenseNetwork(hidden=(True,)), "hidden must be .*got"),
        (lambda: DenseNetwork(start="zero"), "start must be one of 'glorot', 'uniform'; got 'zero'"),
        (lambda: DenseNetwork(l2="a"), "l2 must be .*got 'a'"),
        (lambda: Autoencoder(layers=None), "layers must be .*got None"),
        (lambda: ConvolutionalNetwork(image_shape=5), "image_shape must be a list of 3 integers.*got 5"),
        (lambda: ConvolutionalNetwork(image_shape=(1, 4, 4)), "sides of at least 10"),
        (lambda: ConvolutionalNetwork(channels=(3,)), "channels must be a list of 2 integers"),
        (lambda: TorchModule(module="net"), "module must be a function; got 'net'; pass"),
    ],
)
def test_settings_outside_their_domain_are_named(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
