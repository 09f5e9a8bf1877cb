// A stand-in for an accelerator: memory of its own kind that is host memory, kernels that are the CPU's.
//
// Every operator without a kernel here falls back to the CPU kernel on aliases of the same memory, after
// the check that a real device makes: all tensors on one device. Views, versions and autograd are torch's.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
constexpr auto kStandin = c10::DeviceType::PrivateUse1;
const c10::Device device_zero(kStandin, 0);

// -- memory -------------------------------------------------------------------------------------------

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    TORCH_CHECK_WITH(OutOfMemoryError, n < size_t{1} << 40, "standin out of memory. Tried to allocate ", n, " bytes.");
    c10::DataPtr host = c10::GetCPUAllocator()->allocate(n);
    void* data = host.get();
    auto deleter = host.get_deleter();
    void* context = host.release_context();
    return {data, context, deleter, device_zero};
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kStandin, &allocator);

// Host memory that counts as pinned, so that copies from it may be asked for as non-blocking ones.
struct PinnedAllocator final : c10::Allocator {
  static inline std::mutex mutex;
  static inline std::map<const char*, size_t> blocks;

  c10::DataPtr allocate(size_t n) override {
    auto* data = static_cast<char*>(std::malloc(std::max<size_t>(n, 1)));
    std::lock_guard lock(mutex);
    blocks[data] = n;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* data) {
    {
      std::lock_guard lock(mutex);
      blocks.erase(static_cast<char*>(data));
    }
    std::free(data);
  }
  static bool has(const void* p) {
    std::lock_guard lock(mutex);
    auto after = blocks.upper_bound(static_cast<const char*>(p));
    if (after == blocks.begin()) return false;
    --after;
    return static_cast<const char*>(p) < after->first + std::max<size_t>(after->second, 1);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
PinnedAllocator pinned;

// How often the host had to wait for content of the device, as with every copy to it that is used at once.
std::atomic<int64_t> reads{0};

// -- the device guard: one device; its streams are told apart, and all their work is done at once ----------

std::atomic<c10::StreamId> streams{0};
thread_local c10::StreamId current_stream = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device_zero, id); }
  c10::DeviceType type() const override { return kStandin; }
  c10::Device exchangeDevice(c10::Device) const override { return device_zero; }
  c10::Device getDevice() const override { return device_zero; }
  void setDevice(c10::Device d) const override { TORCH_CHECK(d.index() <= 0, "stand-in: there is one device only"); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(++streams); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(++streams); }
  c10::Stream exchangeStream(c10::Stream s) const override { return stream(std::exchange(current_stream, s.id())); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// -- random numbers: the CPU's generator under another seed, so that mixing the two up is seen ----------

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(uint64_t seed) : at::CPUGeneratorImpl(seed ^ 0x5eed) {
    device_ = device_zero;
    key_set_ = DispatchKeySet(DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override { at::CPUGeneratorImpl::set_current_seed(seed ^ 0x5eed); }
};

at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<Generator>(c10::default_rng_seed_val);
  return generator;
}

// The CPU kernels want a generator that says it is the CPU's: lend the state to one and take it back.
struct Lent {
  at::Generator ours;
  at::Generator cpu;
  explicit Lent(at::Generator generator)
      : ours(std::move(generator)), cpu(at::detail::createCPUGenerator()) {
    cpu.set_state(ours.get_state());
  }
  ~Lent() { ours.set_state(cpu.get_state()); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>(c10::default_rng_seed_val);
  }
  at::Device getDeviceFromPtr(void*) const override { return device_zero; }
  bool isPinnedPtr(const void* p) const override { return PinnedAllocator::has(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    c10::DataPtr data = allocator.allocate(n);
    std::memcpy(data.get(), storage.data(), std::min(n, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(n);
  }
};

// -- aliases: the same memory, seen as the other device's -----------------------------------------------

bool is_ours(const Tensor& t) { return t.defined() && t.device().type() == kStandin; }

// Keeps `owner` alive for as long as memory of its is in use under another name.
c10::DataPtr borrowed(const c10::Storage& owner, c10::Device device) {
  auto* keep = new c10::Storage(owner);
  return {owner.mutable_data(), keep, [](void* p) { delete static_cast<c10::Storage*>(p); }, device};
}

Tensor relabelled(const Tensor& t, const c10::Storage& storage, c10::Device device, DispatchKey key) {
  Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), DispatchKeySet(key), t.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  impl->_set_conj(t.is_conj());
  impl->_set_neg(t.is_neg());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

Tensor to_host_alias(const Tensor& t) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                       borrowed(t.storage(), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), true);
  return relabelled(t, storage, c10::Device(c10::kCPU), DispatchKey::CPU);
}

Tensor to_device_alias(const Tensor& t) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                       borrowed(t.storage(), device_zero), &allocator, true);
  return relabelled(t, storage, device_zero, DispatchKey::PrivateUse1);
}

// -- the fallback -----------------------------------------------------------------------------------------

struct Aliased {
  Tensor original;
  Tensor alias;
};

struct Call {
  const c10::OperatorHandle& op;
  std::vector<Aliased> aliases;
  std::vector<std::unique_ptr<Lent>> generators;

  Tensor host(const Tensor& t) {
    if (!t.defined()) return t;
    if (!is_ours(t)) {
      // A real device takes numbers (and index tensors) from the CPU, nothing else.
      TORCH_CHECK(t.dim() == 0 || takes_host_tensors(),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device_zero, " and ", t.device(), "! (when checking an argument of ",
                  op.schema().name(), ")");
      return t;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(t.layout() == c10::kStrided, op.schema().name(), ": no ", t.layout(), " layout here");
    for (auto& known : aliases)
      if (known.original.is_same(t)) return known.alias;
    aliases.push_back({t, to_host_alias(t)});
    return aliases.back().alias;
  }

  bool takes_host_tensors() const {
    const auto& name = op.schema().name();
    return name == "aten::index" || name == "aten::index_put_" || name == "aten::index_put" ||
        name == "aten::_index_put_impl_" || name == "aten::_pack_padded_sequence";
  }

  c10::IValue host(const c10::IValue& v) {
    if (v.isTensor()) return host(v.toTensor());
    if (v.isTensorList()) {
      c10::List<Tensor> out;
      for (const Tensor& t : v.toTensorVector()) out.push_back(host(t));
      return out;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (const auto& t : v.toOptionalTensorVector()) out.push_back(t ? std::optional<Tensor>(host(*t)) : t);
      return out;
    }
    if (v.isGenerator()) {
      auto given = v.toGenerator();
      if (given.device().type() != kStandin) return v;
      generators.push_back(std::make_unique<Lent>(given));
      return generators.back()->cpu;
    }
    if (v.isDevice() && v.toDevice().type() == kStandin) return c10::Device(c10::kCPU);
    return v;
  }

  Tensor device(const Tensor& t) {
    if (!t.defined() || is_ours(t)) return t;
    for (auto& known : aliases)
      if (known.alias.is_same(t)) return known.original;
    for (auto& known : aliases)
      if (known.alias.storage().is_alias_of(t.storage()))
        return relabelled(t, known.original.storage(), device_zero, DispatchKey::PrivateUse1);
    return to_device_alias(t);
  }

  c10::IValue device(const c10::IValue& v) {
    if (v.isTensor()) return device(v.toTensor());
    if (v.isTensorList()) {
      c10::List<Tensor> out;
      for (const Tensor& t : v.toTensorVector()) out.push_back(device(t));
      return out;
    }
    return v;
  }

  // A kernel may have resized what it wrote to.
  void write_back() {
    for (auto& known : aliases) {
      auto* storage = known.original.storage().unsafeGetStorageImpl();
      if (known.alias.storage().data() != storage->data()) {
        size_t n = known.alias.storage().nbytes();
        storage->set_data_ptr_noswap(borrowed(known.alias.storage(), device_zero));
        storage->set_nbytes(n);
      }
      if (known.alias.sizes() != known.original.sizes() || known.alias.strides() != known.original.strides())
        known.original.unsafeGetTensorImpl()->set_sizes_and_strides(
            known.alias.sizes(), known.alias.strides(), known.alias.storage_offset());
    }
  }
};

void fallback(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t arguments = schema.arguments().size(), begin = stack->size() - arguments;
  Call call{op, {}, {}};
  for (size_t i = 0; i < arguments; i++) {
    auto& value = (*stack)[begin + i];
    const auto& argument = schema.arguments()[i];
    if (argument.name() == "generator" && value.isNone())
      value = c10::IValue(default_generator());
    value = call.host(value);
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  call.write_back();
  const size_t results = schema.returns().size(), first = stack->size() - results;
  for (size_t i = 0; i < results; i++) (*stack)[first + i] = call.device((*stack)[first + i]);
}

// Views touch no memory: the CPU's functions for them work on any tensor.
void view_fallback(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
}

// -- what has to be native --------------------------------------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided, "stand-in: strided tensors only");
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &allocator, DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor efficient_zero(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin) {
  return empty(size, dtype, layout, device, pin, std::nullopt).zero_();
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(),
                                                   self.storage_offset());
  if (needed > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool) {
  if (is_ours(self) && !is_ours(dst)) reads++;
  Tensor from = is_ours(self) ? to_host_alias(self) : self;
  Tensor to = is_ours(dst) ? to_host_alias(dst) : dst;
  at::AutoDispatchBelowAutograd guard;
  to.copy_(from);
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar(const Tensor& self) {
  reads++;
  return at::_local_scalar_dense(to_host_alias(self));
}

Tensor& set_source(Tensor& self, const c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                   c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  if (strides.empty() && !sizes.empty()) {
    impl->set_storage_offset(offset.expect_int());
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset.expect_int());
  }
  return self;
}

Tensor& set_storage(Tensor& self, const c10::Storage source) {
  int64_t n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source(self, source, 0, c10::SymIntArrayRef(std::vector<c10::SymInt>{n}), {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_source(self, source.storage(), source.storage_offset(),
                    c10::fromIntArrayRefSlow(source.sizes()), c10::fromIntArrayRefSlow(source.strides()));
}

Tensor& set_empty(Tensor& self) {
  return set_tensor(self, at::empty({0}, self.options()));
}

bool compatible(const Tensor& self, const Tensor& from) {
  // `.data =` may move a tensor between the CPU and here, as it may between the CPU and CUDA.
  auto dense = [](const Tensor& t) {
    return t.layout() == c10::kStrided && (t.device().is_cpu() || is_ours(t));
  };
  return dense(self) && dense(from);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                   bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  at::AutoDispatchBelowAutograd guard;
  std::optional<Tensor> host_bias;
  if (bias && bias->defined()) host_bias = to_host_alias(*bias);
  return to_device_alias(at::convolution_symint(to_host_alias(input), to_host_alias(weight), host_bias, stride,
                                                padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  at::AutoDispatchBelowAutograd guard;
  std::vector<c10::SymInt> bias{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [a, b, c] = at::convolution_backward_symint(to_host_alias(grad), to_host_alias(input),
                                                   to_host_alias(weight), c10::SymIntArrayRef(bias), stride,
                                                   padding, dilation, transposed, output_padding, groups, mask);
  auto ours = [](const Tensor& t) { return t.defined() ? to_device_alias(t) : t; };
  return {ours(a), ours(b), ours(c)};
}

Tensor with(const Tensor& t, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? t + *bias : t;
}

// Fused cells save the old and the new state of the cell, which the CPU's composite formulas do not.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& x, const Tensor& h, const Tensor& c,
                                             const std::optional<Tensor>& xb, const std::optional<Tensor>& hb) {
  auto gates = (with(h, hb) + with(x, xb)).chunk(4, 1);
  auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  auto cy = f * c + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  auto w = workspace.chunk(4, 1);
  auto &i = w[0], &f = w[1], &g = w[2], &o = w[3];
  auto tc = cy.tanh();
  auto gh = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  auto gc = gh * o * (1 - tc * tc);
  if (grad_cy && grad_cy->defined()) gc = gc + *grad_cy;
  auto gates = at::cat({gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), gh * tc * o * (1 - o)}, 1);
  return {gates, gc * f, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& x, const Tensor& h, const Tensor& hx,
                                    const std::optional<Tensor>& xb, const std::optional<Tensor>& hb) {
  auto gx = with(x, xb).chunk(3, 1), gh = with(h, hb).chunk(3, 1);
  auto r = (gx[0] + gh[0]).sigmoid(), z = (gx[1] + gh[1]).sigmoid(), n = (gx[2] + r * gh[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, gh[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace,
                                                                     bool has_bias) {
  auto w = workspace.chunk(5, 1);
  auto &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  auto gz = grad * (hx - n) * z * (1 - z);
  auto gn = grad * (1 - z) * (1 - n * n);
  auto gr = gn * hn * r * (1 - r);
  auto x = at::cat({gr, gz, gn}, 1), h = at::cat({gr, gz, gn * r}, 1);
  return {x, h, grad * z, has_bias ? x.sum(0) : Tensor(), has_bias ? h.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* view : {"as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex"})
    m.impl(view, torch::CppFunction::makeFromBoxedFunction<&view_fallback>());
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zero);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Storage_storage_offset", set_source);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_empty);
  m.impl("_has_compatible_shallow_copy_type", compatible);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

// A copy reads lazily conjugated or negated elements as they are meant; torch would copy them first, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

// Under autocast, what the CPU computes in lower precision is computed so here, the rest as it comes.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv3d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(binary_cross_entropy, fp32)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register_hooks", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
  m.def("default_generator", [] { return default_generator(); });
  m.def("reads", [] { return reads.load(); });
}
