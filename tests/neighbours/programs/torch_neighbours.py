"""Right programs that use PyTorch's own machinery beside autograd, run with and without the plugin.

Each records what it computed and saw; not one may differ.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.neighbours.shared import f, network, seeds, train  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("default")
TORCH_2_4 = torch.__version__.startswith("2.4.")
detaches_twice = pytest.mark.skipif(
    TORCH_2_4, reason="with torch 2.4 a mode or subclass sees Tensor.detach() of an output twice"
)


# -- transforms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_func(record, name):
    record(getattr(torch.func, name)(f)(torch.randn(4)))


def test_func_vjp_jvp_vmap(record):
    x = torch.randn(4)
    value, pull = torch.func.vjp(f, x)
    record(value, *pull(torch.ones(())))
    record(*torch.func.jvp(f, (x,), (torch.ones(4),)))
    record(torch.func.vmap(torch.func.grad(f))(torch.randn(3, 4)))


def test_functional_call(record):
    model = network()

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    record(*torch.func.grad(loss)(dict(model.named_parameters()), torch.randn(5, 4)).values())
    record(*train(model))


def test_func_beside_autograd(record):
    w = torch.randn(4, requires_grad=True)
    h = w.exp()
    inner = torch.func.grad(f)(torch.randn(4))
    (h * inner).sum().backward()
    record(w.grad)


def test_pytorchs_own_check_is_on_inside_func(record):
    def bad(x):
        h = x.exp()
        h.add_(1)
        return h.sum()

    with pytest.raises(RuntimeError) as caught:
        torch.func.grad(bad)(torch.randn(3))
    record(str(caught.value))


@pytest.mark.parametrize("name", ["jacobian", "hessian"])
def test_autograd_functional(record, name):
    record(getattr(torch.autograd.functional, name)(f, torch.randn(4)))


def test_autograd_functional_products(record):
    x, v = torch.randn(4), torch.randn(4)
    for name in ("vjp", "jvp", "vhp", "hvp"):
        given = torch.ones(()) if name == "vjp" else v
        record(*getattr(torch.autograd.functional, name)(f, x, given))


def test_forward_mode(record):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        dual = forward.make_dual(torch.randn(4, requires_grad=True), torch.ones(4))
        out = f(dual)
        record(forward.unpack_dual(out).tangent)
        out.backward()


def test_gradcheck(record):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    record(torch.autograd.gradcheck(Cube.apply, (x,), fast_mode=False))
    record(torch.autograd.gradgradcheck(Cube.apply, (x,)))
    record(torch.autograd.gradcheck(torch.tanh, (x,), check_forward_ad=True, check_batched_grad=True))


# -- autograd's own ways ------------------------------------------------------------------------------


def test_double_backward(record):
    x = torch.randn(4, requires_grad=True)
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
    h.sum().backward()
    record(g, h, x.grad)


def test_retained_graph_and_its_error(record):
    x = torch.randn(4, requires_grad=True)
    out = f(x)
    out.backward(retain_graph=True)
    out.backward()
    record(x.grad)
    with pytest.raises(RuntimeError) as caught:
        out.backward()
    record(str(caught.value))


def test_anomaly_mode(record):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True):
            x = torch.zeros(2, requires_grad=True)
            with pytest.raises(RuntimeError) as caught:
                (x.sqrt() * 0).sum().backward()
    record(str(caught.value), *[str(w.message).splitlines()[0] for w in seen])


def test_saved_attributes(record):
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    z = y * y
    record(y.grad_fn._saved_result, z.grad_fn._saved_self)  # with any hooks it is no more y itself
    z.sum().backward()


def test_hooks_of_the_user(record):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        x = torch.randn(3, requires_grad=True)
        x.exp().sum().backward()
    with torch.autograd.graph.save_on_cpu():
        x.exp().sum().backward()
    record(x.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(record, reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    x = torch.randn(5, 4, requires_grad=True)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    record(x.grad, *[p.grad for p in model.parameters()])


def test_parametrized_and_normed(record):
    model = network()
    nn.utils.parametrizations.orthogonal(model[0])
    nn.utils.parametrizations.weight_norm(model[2])
    record(*train(model))


# -- objects' lives -----------------------------------------------------------------------------------


def test_objects_die_when_they_would(record):
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    z = (y * y).sum()
    refs = [weakref.ref(t) for t in (y, z)]
    z.backward()
    record([r() is None for r in refs])
    del y
    record([r() is None for r in refs])
    del z
    record([r() is None for r in refs])


def live_tensors():
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def test_garbage_and_live_tensors(record):
    """As many as before, without a garbage collection; what a graph holds meanwhile are more objects."""
    gc.collect()
    gc.disable()
    before = live_tensors()
    model = network()
    loss = model(torch.randn(5, 4)).sum()
    loss.backward()
    record(live_tensors() - before)
    unused = model(torch.randn(5, 4)).sum()
    del unused
    record(live_tensors() - before)
    del model, loss
    record(live_tensors() - before)
    gc.enable()


def test_copies_and_pickles_beside_a_live_graph(record):
    model = network()
    x = torch.randn(5, 4)
    loss = model(x).sum()
    twin = copy.deepcopy(model)
    again = pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    record(len(file.getvalue()))
    loss.backward()
    for other in (twin, again):
        other(x).sum().backward()
        record(*[p.grad for p in other.parameters()])
    hidden = model[0](x)
    with pytest.raises(RuntimeError) as caught:
        copy.deepcopy(hidden)
    record(str(caught.value))


# -- who looks at operations --------------------------------------------------------------------------


class Log(TorchDispatchMode):
    def __init__(self):
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@detaches_twice
def test_dispatch_mode(record):
    model = network()
    with Log() as log:
        out = model(torch.randn(5, 4)).square().mean()
        out = out * torch.rand(())
    record(log.seen)
    with Log() as log:
        out.backward()
        torch.optim.Adam(model.parameters()).step()
    # PyTorch detaches what any hooks give back to it.
    record([name for name in log.seen if name != "aten.detach.default"])


def test_function_mode(record):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    model = network()
    with Mode():
        train(model)
    record(seen)


def test_flop_counter(record):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        train(network())
    record(counter.get_total_flops())


def test_profiler(record, capfd):
    model = network()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        train(model)
    # Torch 2.4 puts the memory of a copy down to another operator with hooks than without.
    events = {e.key: (e.count, 0 if TORCH_2_4 else e.self_cpu_memory_usage) for e in profile.key_averages()}
    record({k: v for k, v in events.items() if k.startswith("aten::")})
    capfd.readouterr()  # the profiler writes the time


def test_function_subclass(record):
    seen = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    w = torch.randn(3, requires_grad=True)
    (w.as_subclass(Logged).exp() * 2).sum().backward()
    record(seen, w.grad)


@detaches_twice
def test_dispatch_subclass(record):
    seen = []

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            kept = torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
            )
            kept.inner = inner
            return kept

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            tree = torch.utils._pytree
            args, kwargs = tree.tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
            return tree.tree_map_only(torch.Tensor, Wrapped, func(*args, **kwargs))

    w = Wrapped(torch.randn(3)).requires_grad_()
    (w.exp() * 2).sum().backward()
    record(seen, w.grad.inner)


# -- kinds of tensors ---------------------------------------------------------------------------------


def test_autocast_and_scaler(record):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    record(*model.parameters(), scaler.get_scale())


def test_inference_mode(record):
    model = network()
    with torch.inference_mode():
        y = model(torch.randn(5, 4))
        y.add_(1)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 4)).mul(y).sum().backward()
    record(str(caught.value))


def test_fake_and_meta(record):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = network()
        model(torch.randn(5, 4)).sum().backward()
        record([tuple(p.grad.shape) for p in model.parameters()])
    model = network().to("meta")
    model(torch.randn(5, 4, device="meta")).sum().backward()
    record([p.grad.device.type for p in model.parameters()])


def test_layouts(record):
    dense = torch.randn(3, 4).relu()
    w = torch.randn(4, 2, requires_grad=True)
    torch.sparse.mm(dense.to_sparse(), w).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (dense.to_sparse_csr() @ w).sum().backward()
    record(w.grad)
    layer = nn.Embedding(5, 3, sparse=True)
    layer(torch.tensor([1, 2, 1])).exp().sum().backward()
    record(layer.weight.grad.to_dense())
    if torch.backends.mkldnn.is_available():
        x = torch.randn(2, 3, 8, 8).to_mkldnn().requires_grad_()
        x.to_dense().exp().sum().backward()
        record(x.grad.to_dense())


@pytest.mark.skipif(TORCH_2_4, reason="torch 2.4 has no matmul_backward for nested tensors")
def test_nested(record):
    x = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True
    )
    w = torch.randn(3, 3, requires_grad=True)
    (x @ w).values().exp().sum().backward()
    record(w.grad)


def test_quantized(record):
    q = torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.quint8)
    w = torch.randn(5, requires_grad=True)
    (w.exp() * q.dequantize()).sum().backward()
    fake = torch.fake_quantize_per_tensor_affine(w, 0.1, 0, 0, 255)
    fake.sum().backward()
    record(w.grad)


def test_complex(record):
    z = torch.randn(3, dtype=torch.cfloat, requires_grad=True)
    (torch.view_as_real(z.exp()) ** 2).sum().backward()
    record(z.grad)


# -- others ---------------------------------------------------------------------------------------------


def test_parallel_apply_in_threads(record):
    models = [network() for _ in range(3)]
    outs = [None] * 3

    def work(i):
        outs[i] = models[i](torch.ones(2, 4)).sum()
        outs[i].backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record(*[p.grad for model in models for p in model.parameters()])


def test_data_loader(record):
    data = torch.utils.data.TensorDataset(torch.randn(12, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True, num_workers=2)
    w = torch.randn(4, requires_grad=True)
    for (batch,) in loader:
        (batch @ w).exp().sum().backward()
    record(w.grad)


def test_recurrent_and_attention(record):
    lstm, attention = nn.LSTM(4, 4), nn.MultiheadAttention(4, 2)
    x = torch.randn(5, 2, 4)
    out, _ = lstm(x)
    mixed, weights = attention(out, out, out)
    (mixed.sum() + weights.square().sum()).backward()
    record(*[p.grad for p in (*lstm.parameters(), *attention.parameters())])


def test_optimizers(record):
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop):
        model = network()
        optimizer = make(model.parameters(), 0.01, foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        record(*model.parameters())
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(5, 4)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    record(optimizer.step(closure), *model.parameters())


def test_swapped_weights(record):
    averaged = torch.optim.swa_utils.AveragedModel(network())
    model = network()
    train(model)
    averaged.update_parameters(model)
    record(*averaged.parameters())
