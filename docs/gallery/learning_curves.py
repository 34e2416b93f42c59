"""Eigenvalues and learning curves of kernels on digits, from the digits' covariance (lines), and measured (points)."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsolve as js


images = js.data.digits(task="parity", n_train=1000, n_test=0, key=jax.random.key(0))
z, y = images.transform(js.data.whiten()).train
x = images.transform(js.data.pca(z.shape[1], standardize=False)).x
x = x / jnp.sqrt(x.var(0).sum())
variances, ridge, sizes = x.var(0), 0.01, (10, 30, 100, 300)
products = x @ x.T
distances = jnp.diag(products)[:, None] + jnp.diag(products) - 2 * products
fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained")
for color, width in zip(js.plot.COLORS, (1.0, 4.0), strict=False):
    levels = js.theory.level_coefficients(lambda s, w=width: jnp.exp((s - 1) / w**2), 6)
    degrees = js.theory.hermite_modes(variances, levels, 500)
    eigenvalues = js.theory.hermite_eigenvalues(degrees, variances, levels)
    q, _ = jnp.linalg.qr(js.theory.hermite_functions(z, degrees))
    target = q.T @ y[:, 0] / len(y) ** 0.5
    # What no mode has is a mode without eigenvalue.
    spectrum, coefficients = jnp.append(eigenvalues, 0.0), jnp.append(target, jnp.sqrt(1 - target @ target))
    error = lambda n, a=spectrum, b=coefficients: js.theory.kernel_regression_error(a, b, n, ridge=ridge).error
    kernel = jnp.exp(-distances / (2 * width**2))
    left.plot(jnp.linalg.eigvalsh(kernel)[::-1][:500] / len(x), ".", markersize=3, color=color)
    left.plot(eigenvalues, color=color)
    rng, kernel = np.random.default_rng(0), np.asarray(kernel)
    errors = np.zeros((20, len(sizes)))
    for place in np.ndindex(errors.shape):
        train, test = np.split(rng.permutation(len(x)), [sizes[place[1]]])
        weights = np.linalg.solve(kernel[np.ix_(train, train)] + ridge * np.eye(len(train)), y[train])
        errors[place] = np.mean((kernel[np.ix_(test, train)] @ weights - y[test]) ** 2)
    right.errorbar(sizes, errors.mean(0), errors.std(0), fmt=".", color=color)
    right.plot(sizes, jax.vmap(error)(jnp.array(sizes)), color=color, label=f"width {width:g}")
right.plot([], [], "k-", label="predicted")
right.plot([], [], "k.", label="measured")
left.set(xscale="log", yscale="log", xlabel="mode", ylabel="eigenvalue of the kernel", ylim=(1e-7, 1))
right.set(xscale="log", ylim=(0, None), xlabel="training images", ylabel="mean squared test error")
right.legend(frameon=False)
