// SPDX-License-Identifier: Apache-2.0
#include "replay.h"

#include "ahead.h"
#include "program.h"
#include "rerun.h"
#include "restless.h"
#include "trace_key.h"

#include <algorithm>
#include <optional>

namespace torchtpu {
namespace {

// The error of an op that ran later than it was called, with the line of the call.
std::exception_ptr at_line(const UserLine& line) {
  try {
    throw;
  } catch (py::error_already_set& error) {
    bridge("add_line")(error.value(), line.describe());
    return std::current_exception();
  } catch (c10::Error& error) {
    error.add_context("recorded at " + line.describe());
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

// One op as a program of its own. If it has none yet, `rest`, the ops that come next, are
// given theirs too. True if those of several ops were built.
bool run_alone(Trace& trace, std::span<Node> rest = {}) {
  TraceLayout layout = lay_out(trace);
  auto program = find_program(trace, layout);
  bool built = false;
  if (!program && !rest.empty()) {
    built = build_ahead(trace, layout, rest);
    program = find_program(trace, layout);
  }
  if (program) {
    run_counters().hits.fetch_add(1);
  } else {
    program = build_program(trace, layout);
    if (program->compiled) {
      note_program_of_list(*trace.nodes[0].signature, trace.nodes[0].line, trace.journal.epoch());
      trace.journal.built_alone();
    }
  }
  run_program(trace, layout, *program);
  remember_run(trace, layout, program);
  return built;
}

bool has_failed_input(const Node& node) {
  for (const NodeInput& input : node.inputs) {
    if (input.value && input.value->failed) {
      return true;
    }
  }
  return false;
}

// The program of a trace of several ops from the cache, or asked for if `is_worth_one`: then it may
// not be ready. Null: there is none.
template <class Condition>
std::shared_ptr<Program> load_or_request(Trace& trace, const TraceLayout& layout, FlushRecord& record,
                                         bool is_urgent, const Condition& is_worth_one) {
  py::object description = describe_trace(trace, layout);
  auto program = std::make_shared<Program>();
  py::object loaded = bridge("lookup_program")(description);
  if (!loaded.is_none()) {
    program->fill(std::move(loaded));
    return add_program(layout.key, layout.liveness, std::move(program));
  }
  if (!is_worth_one()) {
    return nullptr;
  }
  program = add_program(layout.key, layout.liveness, std::move(program));
  record.compile_requested = true;
  run_counters().compiles.fetch_add(1);
  bridge("request_program")(description, PendingProgram{program}, name_of(record.reason),
                            fusion_policy().background.load(), is_urgent);
  return program;
}

// Runs a trace as one program. False if that failed: op by op, the error is raised at the op's line.
bool run_as_one(Trace& trace, TraceLayout& layout, Program& program) {
  try {
    run_program(trace, layout, program);
  } catch (py::error_already_set& error) {
    drop(error);
    return false;
  }
  return true;
}

// The ops of a trace that did not run as one program.
class Replay {
 public:
  Replay(Trace& trace, FlushRecord& record) : trace_(trace), record_(record) {
    nodes_ = std::move(trace.nodes);
    trace.nodes.clear();
    for (Node& node : nodes_) {
      set_place(node, 0);  // of a trace of its own
    }
  }

  // Runs them one by one, as Strict would have, but for the pieces that a stream of other sizes
  // shares with those before it. What depends on an op that failed fails too; the first error is
  // raised at the end. True if programs were built side by side, if one of a group is being compiled,
  // or if the stream will ask for a piece of most of its ops when it comes again.
  bool run() {
    Pieces& pieces = trace_.journal.pieces();
    varies_ = trace_.journal.varies();
    for (const Node& node : nodes_) {  // the first of many sizes, too: what stays is known sooner
      pieces.note(node);
    }
    for (size_t i = 0; i < nodes_.size();) {
      Several several = varies_ ? run_several(std::span(nodes_).subspan(i)) : Several();
      for (size_t j = 0; !several.done && j < several.length; ++j) {
        run_one(i + j);
      }
      i += several.length;
    }
    nodes_.clear();
    trace_.nodes.swap(nodes_);  // keeps its memory for the next trace
    keep_contents(failed_);
    if (first_error_) {
      std::rethrow_exception(first_error_);
    }
    return built_ahead_ > 0 || awaits_group_ || is_promising_;
  }

 private:
  static void set_place(Node& node, size_t place) {
    for (NodeOutput& output : node.outputs) {
      output.value->node = static_cast<uint32_t>(place);
    }
  }

  void run_one(size_t index) {
    bool dependent = has_failed_input(nodes_[index]);
    trace_.nodes.push_back(std::move(nodes_[index]));
    try {
      if (dependent) {
        fail_last();
      } else {
        auto others = index < built_ahead_ ? std::span<Node>() : alone_after(index);
        if (run_alone(trace_, others)) {
          built_ahead_ = index + 1 + others.size();
        }
      }
    } catch (...) {
      if (!first_error_) {
        first_error_ = at_line(trace_.nodes[0].line);
      }
      fail_last();
    }
    trace_.nodes.clear();
  }

  // The ops after this one that may run alone: those up to the next group.
  std::span<Node> alone_after(size_t index) {
    auto rest = std::span(nodes_).subspan(index + 1);
    const Groups& groups = trace_.journal.pieces().groups();
    size_t count = varies_ ? 0 : rest.size();
    while (count < rest.size() && groups.length(rest.subspan(count)) == 0) {
      ++count;
    }
    return rest.first(count);
  }

  // Keeps no operands alive: the last use of one gives its memory to the result.
  void fail_last() {
    fail(trace_.nodes);
    Node& node = failed_.emplace_back(std::move(trace_.nodes[0]));
    node.inputs.clear();
  }

  // Ops in a row, and whether they ran as one program; else each has to run alone.
  struct Several {
    size_t length = 1;
    bool done = false;
  };

  // Runs the group or the piece that begins here.
  Several run_several(std::span<Node> rest) {
    Pieces& pieces = trace_.journal.pieces();
    size_t length = pieces.length(rest);
    if (length == 0 && pieces.groups().length(rest) == 0) {
      learn_groups(rest);
    }
    if (size_t grouped = run_group(rest); grouped > 0) {
      return {grouped, true};
    }
    if (length == 0) {
      return {};
    }
    auto piece = rest.first(length);
    bool known = pieces.is_known(piece);
    is_promising_ |= !known && 2 * length >= nodes_.size();
    return {length, known && run_together(piece, [this] { return run_program_of_piece(); })};
  }

  // Notes the sizes of the ops up to the next piece.
  void learn_groups(std::span<Node> rest) {
    Pieces& pieces = trace_.journal.pieces();
    if (rest.data() < learned_) {
      return;
    }
    size_t length = 0;
    while (length < rest.size() && Groups::may_join(rest[length]) && !has_failed_input(rest[length]) &&
           pieces.length(rest.subspan(length)) == 0) {
      ++length;
    }
    learned_ = rest.data() + length;
    auto open = rest.first(length);
    if (pieces.groups().wants_to_know(open)) {
      Groups::Spans found;
      as_trace(open, [&] {
        found = bridge("groups_in")(describe_trace(trace_, lay_out(trace_))).cast<Groups::Spans>();
        return false;
      });
      pieces.groups().learn(open, found);
    }
  }

  // Runs the group that begins here; how many ops that were, 0: there is none.
  size_t run_group(std::span<Node> rest) {
    Groups& groups = trace_.journal.pieces().groups();
    while (size_t length = groups.length(rest)) {
      std::optional<Groups::Spans> instead;
      if (run_together(rest.first(length), [&] { return run_program_of_group(instead); })) {
        return length;
      }
      if (!instead) {  // there is no smaller group to be found in it
        learned_ = std::max(learned_, static_cast<const Node*>(rest.data() + length));
        return 0;
      }
      groups.replace(rest.first(length), *instead);
    }
    return 0;
  }

  // Several ops as one program. False if there is none yet, or it failed: then they are as before.
  template <class Run>
  bool run_together(std::span<Node> several, const Run& run) {
    if (std::any_of(several.begin(), several.end(), has_failed_input)) {
      return false;
    }
    bool done = as_trace(several, run);
    record_.in_pieces += done ? static_cast<uint32_t>(several.size()) : 0;
    return done;
  }

  // What `use` returns when these ops are the trace: whether they have run.
  template <class Use>
  bool as_trace(std::span<Node> several, const Use& use) {
    for (size_t i = 0; i < several.size(); ++i) {
      set_place(several[i], i);
      trace_.nodes.push_back(std::move(several[i]));
    }
    bool done = use();
    for (size_t i = 0; !done && i < several.size(); ++i) {
      several[i] = std::move(trace_.nodes[i]);
      set_place(several[i], 0);
    }
    trace_.nodes.clear();
    return done;
  }

  // With `instead`, these are the groups among them, and they are none.
  bool run_program_of_group(std::optional<Groups::Spans>& instead) {
    TraceLayout layout = lay_out(trace_);
    auto program = find_program(trace_, layout);
    if (program) {
      run_counters().hits.fetch_add(1);
    } else {
      py::object made = bridge("build_group")(describe_trace(trace_, layout), fusion_policy().background.load());
      if (py::isinstance<py::list>(made)) {
        instead = made.cast<Groups::Spans>();
      }
      bool awaited = py::isinstance<py::bool_>(made);
      awaits_group_ |= awaited;
      if (made.is_none() || awaited || instead) {
        return false;
      }
      program = std::make_shared<Program>();
      program->fill(std::move(made));
      run_counters().compiles.fetch_add(program->compiled ? 1 : 0);
      program = add_program(layout.key, layout.liveness, std::move(program));
    }
    return program->ready() && run_as_one(trace_, layout, *program);
  }

  // The layout holds the operands, and must be gone when the ops run one by one after all.
  bool run_program_of_piece() {
    TraceLayout layout = lay_out(trace_);
    auto program = find_program(trace_, layout);
    if (program) {
      run_counters().hits.fetch_add(program->ready() ? 1 : 0);
    } else if (trace_.journal.pieces().may_request(trace_.nodes)) {
      program = load_or_request(trace_, layout, record_, false, [] { return true; });
    }
    return program && program->ready() && run_as_one(trace_, layout, *program);
  }

  Trace& trace_;
  FlushRecord& record_;
  std::vector<Node> nodes_;
  std::vector<Node> failed_;  // their results
  const Node* learned_ = nullptr;  // up to where the sizes of ops were noted
  std::exception_ptr first_error_;
  size_t built_ahead_ = 0;  // up to this op programs were built side by side
  bool varies_ = false;
  bool awaits_group_ = false;
  bool is_promising_ = false;
};

// Runs the program of the whole trace, if there is one; else `pending` is the one that was asked
// for. The layout holds the trace's operands, and must be gone when the ops run one by one: an
// operand that is held is not donated.
bool run_whole(Trace& trace, FlushRecord& record, std::shared_ptr<Program>& pending) {
  TraceLayout layout = lay_out(trace);
  auto program = find_program(trace, layout);
  if (program) {
    run_counters().hits.fetch_add(program->ready() ? 1 : 0);
  } else if (trace.journal.may_have_program()) {
    program = load_or_request(trace, layout, record, trace.journal.is_regular(), [&] {
      bool in_loop = record.reason == FlushReason::kOpLimit && trace.journal.cut_in_loop();
      return !in_loop && trace.journal.repeats();
    });
    if (record.compile_requested) {
      trace.journal.asked();
    }
  }
  if (!program || !program->ready()) {
    pending = std::move(program);
    return false;
  }
  return run_as_one(trace, layout, *program);
}

// Runs a short trace as one program although it was never seen before, if that takes fewer programs. The
// first step of an optimizer, which makes its state, will not come again.
bool run_at_first_sight(Trace& trace, const FlushRecord& record) {
  const FusionPolicy& policy = fusion_policy();
  bool may_be = record.reason != FlushReason::kOptimizerStep &&
                trace.journal.length() <= policy.at_first_sight.load(std::memory_order_relaxed) &&
                policy.sightings.load(std::memory_order_relaxed) <= 1 && trace.journal.is_first_at(record.line) &&
                std::none_of(trace.nodes.begin(), trace.nodes.end(), has_failed_input);
  if (!may_be || !build_at_first_sight(trace, record)) {
    return false;
  }
  TraceLayout layout = lay_out(trace);
  auto program = find_program(trace, layout);
  return program && program->ready() && run_as_one(trace, layout, *program);
}

// What an op that did not run would have written has the contents it had before, unless they went
// with the operand's memory: the script may catch the error and go on, as after an error at its line.
void take_contents_before(const Node& node, NodeOutput& output) {
  if (output.replaces < 0 || output.value->array.load() != nullptr) {
    return;
  }
  const ValuePtr& before = node.inputs[output.replaces].value;
  PyObject* array = before->array.load();
  if (array != nullptr && before->written.load() == 0 && before->geometry == output.value->geometry &&
      !py::reinterpret_borrow<py::object>(array).attr("is_deleted")().cast<bool>()) {
    Py_INCREF(array);
    output.value->set_array(array);
    output.value->lent = true;  // to what still reads the value before
  }
}

}  // namespace

void fail(std::vector<Node>& nodes) {
  for (Node& node : nodes) {
    for (NodeOutput& output : node.outputs) {
      output.value->failed = true;
      output.value->trace.store(nullptr);
      take_contents_before(node, output);
    }
  }
}

void keep_contents(std::vector<Node>& nodes) {
  for (Node& node : nodes) {
    for (NodeOutput& output : node.outputs) {
      output.value->failed &= output.value->array.load() == nullptr;
    }
  }
}

void run_single(Trace& trace) { run_alone(trace); }

void run_together(Trace& trace, FlushRecord& record) {
  std::shared_ptr<Program> pending;
  if (run_whole(trace, record, pending) || (!pending && run_at_first_sight(trace, record))) {
    trace.journal.hit();
    return;
  }
  bool built = Replay(trace, record).run();
  record.outcome = record.in_pieces > 0 ? Outcome::kInPieces : Outcome::kOpByOp;
  trace.journal.miss(std::move(pending), built, record.in_pieces);
}

}  // namespace torchtpu
