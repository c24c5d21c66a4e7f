// SPDX-License-Identifier: Apache-2.0
#include "messages.h"

#include "device_api.h"
#include "untraced.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <unordered_set>

namespace torchtpu::distributed {
namespace {

// Interrupts waits of gloo's that are under way, every kSignalPeriod.
class Interrupter {
 public:
  static Interrupter& instance() {
    static auto* the_interrupter = new Interrupter();
    return *the_interrupter;
  }

  void add(c10d::Work& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    works_.insert(&work);
  }
  void remove(c10d::Work& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    works_.erase(&work);
  }

 private:
  Interrupter() {
    std::thread([this] {
      while (true) {
        std::this_thread::sleep_for(kSignalPeriod);
        std::lock_guard<std::mutex> lock(mutex_);
        for (c10d::Work* work : works_) {
          work->abort();  // its wait returns false, and can be repeated
        }
      }
    }).detach();
  }

  std::mutex mutex_;
  std::unordered_set<c10d::Work*> works_;
};

// When a wait of the caller's is over: at no time without a timeout.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  void check(const Pending& record) const {
    if (timeout_ != kNoTimeout && std::chrono::steady_clock::now() - began_ > timeout_) {
      throw_not_yet(record, timeout_);
    }
  }

 private:
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// Without the GIL. False if aborted; throws what gloo or a handler of a signal does, and NotYet.
bool wait_for_message(c10d::Work& work, const Pending& record, const Deadline& deadline, const Abort& abort) {
  struct Interrupted {
    explicit Interrupted(c10d::Work& of) : work(of) { Interrupter::instance().add(work); }
    ~Interrupted() { Interrupter::instance().remove(work); }
    c10d::Work& work;
  } interrupted(work);
  while (!work.wait()) {
    if (abort.set.load(std::memory_order_relaxed)) {
      return false;
    }
    deadline.check(record);
    check_signals();
  }
  return true;
}

// What a message is sent from, or comes into: the tensor's own memory, or a copy on the host. Of a
// CPU tensor the host's copy is the tensor.
struct Parcel {
  Memory memory;
  at::Tensor host;

  at::Tensor bytes(const at::Tensor& tensor) const {
    void* address = memory.address != nullptr ? memory.address : host.data_ptr();
    return at::from_blob(address, {static_cast<int64_t>(tensor.nbytes())},
                         at::TensorOptions().dtype(at::kByte));
  }
};

// What a thread that waits behind says.
struct Arrival {
  std::atomic<bool> is_over{false};
  std::exception_ptr mistake;  // set before it is over

  // Throws the mistake of who waits.
  bool fits() const {
    if (mistake) {
      std::rethrow_exception(mistake);
    }
    return true;
  }
};

// One end of a message. It counts as under way while somebody waits for it.
class MessageWork : public c10d::Work {
 public:
  MessageWork(std::shared_ptr<Direct> direct, WorkPtr of_gloo, PendingPtr record, at::Tensor tensor,
              Parcel parcel, bool receives, std::optional<int> any_tag = std::nullopt)
      : direct_(std::move(direct)),
        of_gloo_(std::move(of_gloo)),
        record_(std::move(record)),
        tensor_(std::move(tensor)),
        parcel_(std::make_shared<Parcel>(std::move(parcel))),
        receives_(receives),
        any_tag_(any_tag) {}

  // A message nobody waited for is carried all the same.
  ~MessageWork() override {
    if (!over_ && Py_IsInitialized() != 0) {
      wait_behind();
    }
  }

  bool isCompleted() override {
    direct_->check();
    if (!over_) {
      wait_behind();
    }
    return over_ || arrived_->is_over.load();
  }
  bool isSuccess() const override { return over_; }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  int sourceRank() const override {
    TORCH_CHECK(receives_,
                "source_rank() is known of the work of a receive only: dist.irecv() returns one.");
    const_cast<MessageWork*>(this)->wait(kNoTimeout);
    return of_gloo_->sourceRank();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    return finished_future({tensor_});
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (over_) {
      direct_->check();
      return true;
    }
    direct_->follow(record_, [this, deadline = Deadline(timeout)](const Abort& abort) {
      if (behind_) {
        auto is_over = [&] { return deadline.check(*record_), arrived_->is_over.load(); };
        return poll(abort, is_over) && arrived_->fits();
      }
      return wait_for_message(*of_gloo_, *record_, deadline, abort);
    });
    over_ = true;
    if (any_tag_) {
      py::gil_scoped_acquire gil;
      direct_->compare(record_, false, -1, *any_tag_, tensor_, of_gloo_->sourceRank());
    }
    if (receives_ && parcel_->host.defined() && !tensor_.device().is_cpu()) {
      fill();
    }
    parcel_.reset();
    return true;
  }

 private:
  // Waits in a thread of Python's, which keeps what gloo uses.
  void wait_behind() {
    if (std::exchange(behind_, true)) {
      return;
    }
    py::gil_scoped_acquire gil;
    Untraced untraced;
    auto wait = [work = of_gloo_, arrived = arrived_, parcel = parcel_] {
      py::gil_scoped_release no_gil;
      try {
        while (!work->wait()) {
        }
      } catch (const c10::ValueError&) {
        arrived->mistake = std::current_exception();
      }
      arrived->is_over.store(true);
    };
    direct_->owner().attr("wait_behind")(record_, py::cpp_function(std::move(wait)));
  }

  void fill() {
    {
      py::gil_scoped_acquire gil;
      Memory memory = direct_->memory(tensor_, true);
      if (memory.address != nullptr) {
        std::memcpy(memory.address, parcel_->host.data_ptr(), parcel_->host.nbytes());
        return;
      }
    }
    at::NoGradGuard no_grad;
    tensor_.copy_(parcel_->host);
  }

  std::shared_ptr<Direct> direct_;
  WorkPtr of_gloo_;
  PendingPtr record_;
  at::Tensor tensor_;
  std::shared_ptr<Parcel> parcel_;
  bool receives_;
  std::optional<int> any_tag_;  // of a receive from any rank
  bool behind_ = false;
  bool over_ = false;
  std::shared_ptr<Arrival> arrived_ = std::make_shared<Arrival>();
};

PendingPtr record_message(const std::shared_ptr<Direct>& direct, const char* kind, int peer,
                          const at::Tensor& tensor) {
  py::gil_scoped_acquire gil;
  PendingPtr record = direct->message(kind, peer, tensor);
  if (!tensor.device().is_cpu()) {
    device_api().add_device_time(tensor.device().index(), record->call->device_time_ps);
  }
  return record;
}

void compare_ends(Direct& direct, const PendingPtr& record, bool sends, int peer, int tag, const at::Tensor& tensor) {
  py::gil_scoped_acquire gil;
  direct.compare(record, sends, peer, tag, tensor);
}

Memory memory_of(const Direct& direct, const at::Tensor& tensor, bool write) {
  if (tensor.device().is_cpu()) {
    return {};
  }
  py::gil_scoped_acquire gil;
  return direct.memory(tensor, write);
}

// A CPU tensor is left to gloo as it is.
at::Tensor checked(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "send() and recv() take contiguous CPU tensors: call .contiguous().");
  return tensor.detach();
}

// Begins a message; a rank that is lost already is named as one that is lost later.
WorkPtr begin(Direct& direct, const PendingPtr& record, const std::function<WorkPtr()>& message) {
  std::exception_ptr failure;
  try {
    return message();
  } catch (const c10::Error&) {  // an argument's
    throw;
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  direct.follow(record, [&](const Abort&) -> bool { std::rethrow_exception(failure); });
  return nullptr;
}

}  // namespace

WorkPtr send(const std::shared_ptr<Direct>& direct, c10d::Backend& gloo, const at::Tensor& tensor, int peer,
             int tag) {
  direct->check();
  PendingPtr record = record_message(direct, "send", peer, tensor);
  Parcel parcel{memory_of(*direct, tensor, false), at::Tensor()};
  if (parcel.memory.address == nullptr) {
    parcel.host = tensor.device().is_cpu() ? checked(tensor) : tensor.detach().cpu().contiguous();
  }
  std::vector<at::Tensor> bytes{parcel.bytes(tensor)};
  compare_ends(*direct, record, true, peer, tag, tensor);
  WorkPtr work = begin(*direct, record, [&] {
    return peer == direct->rank() ? direct->own_messages().send(peer, bytes[0], tag)
                                  : gloo.send(bytes, peer, tag);
  });
  return c10::make_intrusive<MessageWork>(direct, std::move(work), std::move(record), tensor,
                                          std::move(parcel), false);
}

WorkPtr receive(const std::shared_ptr<Direct>& direct, c10d::Backend& gloo, const at::Tensor& tensor, int peer,
                int tag) {
  direct->check();
  PendingPtr record = record_message(direct, "recv", peer, tensor);
  Parcel parcel;
  if (tensor.nbytes() == tensor.storage().nbytes()) {  // parts of one storage may all be received
    parcel.memory = memory_of(*direct, tensor, true);
  }
  if (parcel.memory.address == nullptr) {
    parcel.host = tensor.device().is_cpu()
                      ? checked(tensor)
                      : at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
  }
  std::vector<at::Tensor> bytes{parcel.bytes(tensor)};
  OwnMessages& own = direct->own_messages();
  compare_ends(*direct, record, false, peer, tag, tensor);
  auto from_others = [&] { return gloo.recvAnysource(bytes, tag); };
  WorkPtr work = begin(*direct, record, [&] {
    return peer == direct->rank() ? own.receive(peer, bytes[0], tag)
           : peer < 0 ? own.receive_any(direct->rank(), bytes[0], tag, direct->size() == 1, from_others)
                      : gloo.recv(bytes, peer, tag);
  });
  return c10::make_intrusive<MessageWork>(direct, std::move(work), std::move(record), tensor,
                                          std::move(parcel), true, peer < 0 ? std::optional(tag) : std::nullopt);
}

}  // namespace torchtpu::distributed
