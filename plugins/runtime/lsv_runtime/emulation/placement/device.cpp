// A device that is not there, by torch's open registration of devices (PrivateUse1). Its memory is the host's and the
// host computes at once, but tensors have a device of their own, so that whatever mixes them with tensors of the host,
// reads them without a copy, or reads a copy before it is done, fails here as it would on a card.

#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 16;
constexpr int kPoison = 0xA5;

struct Memory {
  std::atomic<int64_t> held{0}, peak{0};
  void add(int64_t bytes) {
    const int64_t now = held += bytes;
    int64_t seen = peak;
    while (seen < now && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};

Memory memories[kDevices];
std::atomic<int64_t> waits{0};
thread_local c10::DeviceIndex current = 0;

// ---- memory of the device, and pinned memory of the host ----

// Large blocks are mapped: they are zero, and pages that nobody writes to take nothing of the host.
constexpr size_t kMapped = 1 << 20;

struct Block {
  void* data;
  int64_t bytes;
  int index;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  memories[block->index].held -= block->bytes;
  if (static_cast<size_t>(block->bytes) >= kMapped) {
    munmap(block->data, block->bytes);
  } else {
    std::free(block->data);
  }
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes >= kMapped) {
      data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      TORCH_CHECK(data != MAP_FAILED, "out of memory");
    } else {
      TORCH_CHECK(posix_memalign(&data, 64, bytes ? bytes : 1) == 0, "out of memory");
    }
    memories[current].add(static_cast<int64_t>(bytes));
    auto* block = new Block{data, static_cast<int64_t>(bytes), current};
    return {data, block, free_block, c10::Device(kDevice, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

std::mutex pinned_lock;
std::map<const char*, size_t> pinned;
std::atomic<int64_t> pinned_allocations{0};

struct PinnedAllocator final : c10::Allocator {
  static void release(void* data) {
    {
      std::lock_guard<std::mutex> held(pinned_lock);
      pinned.erase(static_cast<const char*>(data));
    }
    std::free(data);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, bytes ? bytes : 1) == 0, "out of memory");
    ++pinned_allocations;
    std::lock_guard<std::mutex> held(pinned_lock);
    pinned[static_cast<const char*>(data)] = bytes;
    return {data, data, release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> held(pinned_lock);
  const auto* place = static_cast<const char*>(data);
  auto found = pinned.upper_bound(place);
  if (found == pinned.begin()) return false;
  --found;
  return place < found->first + found->second;
}

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const auto before = exchangeDevice(storage.device().index());
    auto data = device_allocator.allocate(bytes);
    exchangeDevice(before);
    if (bytes && storage.nbytes()) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    auto* held = storage.unsafeGetStorageImpl();
    held->set_data_ptr_noswap(std::move(data));
    held->set_nbytes(bytes);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kDevice, std::exchange(current, device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(kDevice, current); }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return c10::Stream(c10::Stream::DEFAULT, stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- tensors of the device as the host sees them ----

bool is_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice; }

// The same memory as a tensor of the host. Empty ones get memory of their own: an operation may resize them.
at::Tensor as_host(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

// A tensor of the device over the memory of a host tensor that nobody else has.
at::Tensor as_device(const at::Tensor& host, c10::DeviceIndex index) {
  const auto bytes = static_cast<int64_t>(host.storage().nbytes());
  struct Held {
    at::Tensor host;
    int64_t bytes;
    int index;
  };
  memories[index].add(bytes);
  auto* held = new Held{host, bytes, index};
  c10::DataPtr data(
      const_cast<void*>(host.storage().data()), held,
      [](void* context) {
        auto* held = static_cast<Held*>(context);
        memories[held->index].held -= held->bytes;
        delete held;
      },
      c10::Device(kDevice, index));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &device_allocator, true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), host.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return made;
}

// ---- copies between host and device, in the order in which they were asked for ----

struct Pending {
  int64_t number;
  at::Tensor target, values;  // to the host: what it will find there; to the device: the source, which must not change
  bool to_host;
};

std::mutex pending_lock;
std::vector<Pending> pending;
int64_t copies = 0;

std::string finish(int64_t last) {
  std::vector<Pending> done;
  {
    std::lock_guard<std::mutex> held(pending_lock);
    auto rest = pending.begin();
    while (rest != pending.end() && rest->number <= last) done.push_back(std::move(*rest++));
    pending.erase(pending.begin(), rest);
  }
  std::string fault;
  for (auto& copy : done) {
    if (copy.to_host) {
      std::memcpy(copy.target.mutable_data_ptr(), copy.values.const_data_ptr(), copy.values.nbytes());
    } else if (std::memcmp(copy.target.const_data_ptr(), copy.values.const_data_ptr(), copy.values.nbytes()) != 0) {
      fault = "pinned memory was written to before its copy to the device was waited for";
    }
  }
  return fault;
}

void wait_for_device() {
  ++waits;
  const std::string fault = finish(INT64_MAX);
  TORCH_CHECK(fault.empty(), fault);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (is_device(source) && is_device(target)) {
    as_host(target).copy_(as_host(source));
    return target;
  }
  c10::InferenceMode quiet(true);
  if (is_device(source)) {
    auto values = as_host(source);
    if (non_blocking && target.is_contiguous() && is_pinned(target.const_data_ptr())) {
      std::lock_guard<std::mutex> held(pending_lock);
      pending.push_back({++copies, target, values.to(target.scalar_type()).clone(at::MemoryFormat::Contiguous), true});
      std::memset(target.mutable_data_ptr(), kPoison, target.nbytes());
    } else {
      wait_for_device();
      target.copy_(values);
    }
    return target;
  }
  as_host(target).copy_(source);
  if (!non_blocking || !source.numel() || !is_pinned(source.const_data_ptr())) {
    if (source.numel()) wait_for_device();
  } else if (source.is_contiguous()) {
    std::lock_guard<std::mutex> held(pending_lock);
    pending.push_back({++copies, source, source.clone(), false});
  }
  return target;
}

// ---- operations ----

at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto index = device && device->has_index() ? device->index() : current;
  c10::DeviceGuard guard(c10::Device(kDevice, index));
  return at::detail::empty_generic_symint(
      size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())), format);
}

at::Tensor zeros(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pinned) {
  const auto made = empty(size, dtype, layout, device, pinned, std::nullopt);
  if (made.nbytes() < kMapped && made.nbytes()) std::memset(made.mutable_data_ptr(), 0, made.nbytes());
  return made;
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const auto index = device && device->has_index() ? device->index() : current;
  c10::DeviceGuard guard(c10::Device(kDevice, index));
  return at::detail::empty_strided_symint_generic(
      size, stride, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
}

const at::Tensor& resize(
    const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * self.itemsize();
  auto storage = self.storage();
  if (bytes > storage.nbytes()) {
    c10::DeviceGuard guard(self.device());
    auto data = device_allocator.allocate(bytes);
    std::memcpy(data.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr(std::move(data));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Scalar read_scalar(const at::Tensor& self) {
  wait_for_device();
  return as_host(self).item();
}

// Torch asks devices of other makers for this one alone.
at::Tensor convolve(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  TORCH_CHECK(is_device(input) && is_device(weight), "convolution: expected all tensors to be on the same device");
  const auto added = bias && bias->defined() ? std::optional<at::Tensor>(as_host(*bias)) : std::nullopt;
  const auto made = at::convolution_symint(
      as_host(input), as_host(weight), added, stride, padding, dilation, transposed, output_padding, groups);
  return as_device(made, input.device().index());
}

bool takes_host_indices(const std::string& name) {
  return name == "aten::index" || name.find("index_put") != std::string::npos;
}

bool waits_for_result(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
}

// What the host did to the stand-in of an argument that an operation wrote to.
void adopt(const at::Tensor& own, const at::Tensor& host) {
  if (own.sizes() == host.sizes()) {
    if (own.numel() == 0 || own.const_data_ptr() == host.const_data_ptr()) return;
    as_host(own).copy_(host);
    return;
  }
  auto made = as_device(host, own.device().index());
  own.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  own.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
}

struct Argument {
  at::Tensor own, host;
};

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op), name_(op.schema().name()) {}

  void run(torch::jit::Stack* stack) {
    const auto count = op_.schema().arguments().size();
    const auto first = stack->size() - count;
    for (size_t at = 0; at < count; ++at) lower((*stack)[first + at], op_.schema().arguments()[at].name());
    TORCH_CHECK(index_ >= 0, name_, " has no tensor of the device");
    if (waits_for_result(op_)) wait_for_device();
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    const auto results = op_.schema().returns().size();
    for (size_t at = 0; at < results; ++at) raise((*stack)[stack->size() - results + at]);
    for (const auto& argument : arguments_) adopt(argument.own, argument.host);
  }

 private:
  at::Tensor lower(const at::Tensor& tensor, const std::string& argument) {
    if (!tensor.defined()) return tensor;
    if (!is_device(tensor)) {
      const bool known = tensor.dim() == 0 || (argument == "indices" && takes_host_indices(name_));
      TORCH_CHECK(
          known, name_, ": expected all tensors to be on the same device, but ", argument, " is on ", tensor.device());
      if (tensor.dim()) wait_for_device();
      return tensor;
    }
    TORCH_CHECK(
        index_ < 0 || index_ == tensor.device().index(), name_, ": tensors are on devices ", index_, " and ",
        tensor.device().index());
    index_ = tensor.device().index();
    for (const auto& seen : arguments_)
      if (seen.own.is_same(tensor)) return seen.host;
    arguments_.push_back({tensor, as_host(tensor)});
    return arguments_.back().host;
  }

  void lower(c10::IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      value = lower(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> found;
      for (const at::Tensor& one : value.toTensorVector()) found.push_back(lower(one, argument));
      value = c10::List<at::Tensor>(found);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> found;
      for (const std::optional<at::Tensor> one : value.toOptionalTensorList())
        found.push_back(one ? std::optional<at::Tensor>(lower(*one, argument)) : std::nullopt);
      value = found;
    } else if (value.isDevice() && value.toDevice().type() == kDevice) {
      value = c10::Device(at::kCPU);
    }
  }

  at::Tensor raise(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != c10::DeviceType::CPU) return tensor;
    for (const auto& argument : arguments_) {
      if (argument.host.is_same(tensor)) return argument.own;
      if (argument.own.numel() && tensor.has_storage() && tensor.storage().is_alias_of(argument.host.storage())) {
        const auto bytes = static_cast<const char*>(tensor.const_data_ptr()) -
            static_cast<const char*>(argument.own.storage().data());
        return argument.own.as_strided(tensor.sizes(), tensor.strides(), bytes / tensor.itemsize());
      }
    }
    return as_device(tensor, index_);
  }

  void raise(c10::IValue& value) {
    if (value.isTensor()) {
      value = raise(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> found;
      for (const at::Tensor& one : value.toTensorVector()) found.push_back(raise(one));
      value = c10::List<at::Tensor>(found);
    }
  }

  const c10::OperatorHandle& op_;
  std::string name_;
  std::vector<Argument> arguments_;
  c10::DeviceIndex index_ = -1;
};

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op).run(stack); }

at::Tensor see_as_host(const at::Tensor& tensor) {
  TORCH_CHECK(is_device(tensor), "a tensor of the host is given to the device");
  return as_host(tensor);
}

at::Tensor keep_on_device(const at::Tensor& tensor, int64_t index) {
  return as_device(tensor, static_cast<c10::DeviceIndex>(index));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("zeros", zeros);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_local_scalar_dense", read_scalar);
  m.impl("convolution_overrideable", convolve);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>()); }

TORCH_LIBRARY(lsv_emulated, m) {
  m.def("on_host(Tensor tensor) -> Tensor", see_as_host);
  m.def("on_device(Tensor tensor, int index) -> Tensor", keep_on_device);
}

struct Registration {
  Registration() {
    c10::SetAllocator(kDevice, &device_allocator);
    at::RegisterPrivateUse1HooksInterface(new Hooks());
  }
} registration;

}  // namespace

extern "C" {

int64_t lsv_emulated_held(int index) { return memories[index].held; }
int64_t lsv_emulated_peak(int index) { return memories[index].peak; }
void lsv_emulated_reset_peak(int index) { memories[index].peak = memories[index].held.load(); }
int64_t lsv_emulated_waits() { return waits; }
int64_t lsv_emulated_pinned_allocations() { return pinned_allocations; }
void lsv_emulated_set_device(int index) { current = static_cast<c10::DeviceIndex>(index); }

// The number of the last copy that was asked for, for lsv_emulated_finish.
int64_t lsv_emulated_mark() {
  std::lock_guard<std::mutex> held(pending_lock);
  return copies;
}

// Wait for all copies up to that number. 0, or 1 where memory changed under a copy.
int lsv_emulated_finish(int64_t last) {
  ++waits;
  return finish(last).empty() ? 0 : 1;
}
}
