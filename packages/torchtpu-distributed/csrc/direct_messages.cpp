// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: compared with what the other end says of them, and followed to
// their end.
#include "direct.h"

#include "direct_works.h"
#include "untraced.h"

namespace torchtpu::distributed {

void Direct::compare(const PendingPtr& record, bool sends, int peer, int tag, const at::Tensor& tensor, int source) {
  if (!letters_ || peer == rank_ || source == rank_ || tag < 0) {
    return;
  }
  auto dtype = py::str(py::cast(tensor.scalar_type())).cast<std::string>();
  std::string content = std::to_string(tensor.numel()) + " elements of " + dtype + ",";
  std::string what = content + " shape " + c10::str(tensor.sizes());
  std::optional<std::string> said;
  if (peer >= 0) {
    said = letters_->compare(sends, peer, tag, what, record->line);
  } else if (source < 0) {
    letters_->expect(tag);
  } else {
    said = letters_->compare_arrived(source, tag, what);
  }
  if (!said) {
    return;
  }
  std::string ends = std::to_string(peer < 0 ? source : peer) + "\n" + what + "\n" + *said;
  if (!said->starts_with(content)) {
    report("message_differs", record, ends);
  }
  Untraced untraced;
  owner_().attr("message_reshaped")(record, readable(ends));
}

void Direct::follow(const PendingPtr& record, const std::function<bool(const Abort&)>& wait) {
  record->began_s = monotonic_s();
  records_->begin(record);
  std::string trouble;
  try {
    if (wait(*abort_)) {
      record->launched_s.store(monotonic_s());
      record->done_s.store(monotonic_s());
      records_->end(record);
      return;
    }
  } catch (py::error_already_set&) {  // Ctrl-C, or another handler of a signal
    records_->end(record);
    throw;
  } catch (const c10::ValueError&) {
    records_->end(record);
    throw;
  } catch (const NotYet&) {
    records_->end(record);
    throw;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  py::gil_scoped_acquire gil;
  report("message_failed", record, trouble);
}

}  // namespace torchtpu::distributed
