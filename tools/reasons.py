"""The reason codes: one table, from which the verdict, the advice and docs/reasons.md all come.

To add a code, add one row to its group in `TABLE`, then run `python -m bitgate.tools.reasons > docs/reasons.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bitgate.store.records import Reason, Verdict

DETAIL_LIMIT: Final = 600


@dataclass(frozen=True)
class ReasonRow:
    """One code: the verdict it leads to, what it means, and what to do next."""

    code: str
    verdict: Verdict
    meaning: str
    next: str


TABLE: Final[Mapping[str, tuple[ReasonRow, ...]]] = MappingProxyType(
    {
        "Compared and different": (
            ReasonRow(
                "cause_unresolved",
                "fail",
                "The two sides differ, and what was observed does not say why.",
                "Run bisect_layer on the first different row; from two files alone no cause can be named.",
            ),
            ReasonRow(
                "dispatch_differs",
                "fail",
                "The two sides differ, and their engines dispatch some operators to different kernels.",
                "Let both sides run the same kernels first: compare the options that choose them, then run again.",
            ),
            ReasonRow(
                "logprobs_differ",
                "fail",
                "At least one token under the response mask has another fp32 bit pattern on the other side.",
                "Look at the first and worst rows and at the clusters, then run bisect_layer on that sequence.",
            ),
        ),
        "Localising": (
            ReasonRow(
                "cause_unknown",
                "fail",
                "The two computations differ; where is said as far as it was observed, but no experiment showed why.",
                "Look at the experiments that were tried; add the point that was not captured, or run the repro.",
            ),
            ReasonRow(
                "first_cause_found",
                "fail",
                "The first operator with equal inputs and another output is known, and an experiment shows its class.",
                "Run the repro, change that operator on one side, and call bisect_layer again.",
            ),
            ReasonRow(
                "not_deterministic",
                "fail",
                "The same step on the same engine twice gives other logprobs.",
                "Make the side deterministic first (run_compare check=repeat); until then nothing can be compared.",
            ),
            ReasonRow(
                "observer_effect",
                "inconclusive",
                "A side's logprobs are others while its points are watched: what was watched is not what is deployed.",
                "Watch a side without compilation and graphs, and compare that configuration with the deployed one.",
            ),
            ReasonRow(
                "points_missing",
                "inconclusive",
                "Mandatory points of some layers were not observed on both sides.",
                "Start the engine eager (vLLM: enforce_eager = true); docs/bisect.md says what each engine shows.",
            ),
            ReasonRow(
                "replicas_differ",
                "fail",
                "Ranks that should hold the same bits of a tensor do not.",
                "Find which collective or which rank's kernel made the copies differ before comparing the sides.",
            ),
            ReasonRow(
                "repro_not_proved",
                "inconclusive",
                "No script was made that shows the difference in three fresh processes.",
                "The detail has the exit codes; the recorded operators are in the run's folder.",
            ),
        ),
        "Not comparable": (
            ReasonRow(
                "logprob_precision",
                "invalid",
                "Logprobs were stored or computed with fewer bits than fp32, which hides differences.",
                "Compute log_softmax in fp32 and store fp32; a bf16 or fp16 column widened afterwards does not count.",
            ),
            ReasonRow(
                "logprobs_mode",
                "invalid",
                "A side recorded logprobs after sampling transforms, not the raw model logprobs.",
                "Record raw logprobs: for vLLM start the engine with logprobs_mode=raw_logprobs.",
            ),
            ReasonRow(
                "mask_differs",
                "invalid",
                "The response masks of the two sides are not the same.",
                "Write both captures with the mask that the loss uses.",
            ),
            ReasonRow(
                "no_evidence_of_recompute",
                "invalid",
                "Nothing shows that this leg was computed on its own: no computation record, no forward pass, "
                "or the same computation, file or buffer as another leg.",
                "Let CaptureWriter watch the model of each leg, and hand each leg its own result, not a copied column.",
            ),
            ReasonRow(
                "not_the_train_forward",
                "invalid",
                "The first_train_forward leg did not come from the forward whose graph makes the loss.",
                "Capture the logprobs of the training forward itself: train mode, gradients on, nothing detached.",
            ),
            ReasonRow(
                "prompts_differ",
                "invalid",
                "The rollout's rows do not continue the prompts of the workload that the trainer is given.",
                "Name the workload that the rollout was sampled from.",
            ),
            ReasonRow(
                "role_differs",
                "invalid",
                "A capture was handed in as one leg and says that it is another.",
                "Hand in each leg's own capture, and write it with the role of its leg.",
            ),
            ReasonRow(
                "rows_missing",
                "invalid",
                "Rows of one side have no partner with the same sequence, turn and position on the other.",
                "Score exactly the tokens that were sampled, on both sides, and write every row once.",
            ),
            ReasonRow(
                "sampling_contract",
                "invalid",
                "A sampling parameter is outside the allow-list under which logprobs are comparable.",
                "Sample greedily or with temperature 1, top_p 1, top_k off, no penalties, no bias, no processors.",
            ),
            ReasonRow(
                "temperature_differs",
                "invalid",
                "The recorded logprobs were divided by another temperature, or by one that is not 1.",
                "Record both sides at temperature 1.",
            ),
            ReasonRow(
                "token_ids_differ",
                "invalid",
                "The same sequence, turn and position holds another token on the other side.",
                "Feed the sampled token ids to the trainer as they are; never decode and tokenise again.",
            ),
            ReasonRow(
                "tokenizer_differs",
                "invalid",
                "The two sides name different tokenizers.",
                "Use one tokenizer on both sides.",
            ),
            ReasonRow(
                "vocabulary_differs",
                "invalid",
                "The two sides name different vocabulary sizes.",
                "Use the same model configuration on both sides.",
            ),
            ReasonRow(
                "weight_version_differs",
                "invalid",
                "The two sides, or the rows within one, come from different weight versions.",
                "Drain the rollout before a weight update, and compare rows of one version only.",
            ),
            ReasonRow(
                "weights_differ",
                "invalid",
                "The two sides ran on weights with different digests.",
                "Compare the per-tensor digests; load or synchronise the same bytes on both sides.",
            ),
        ),
        "Broken capture": (
            ReasonRow(
                "capture_changed",
                "invalid",
                "A capture's file changed while it was being compared.",
                "Compare captures only after their writer has finished.",
            ),
            ReasonRow(
                "capture_json",
                "invalid",
                "capture.json is not strict JSON of the documented form.",
                "Write it with CaptureWriter (docs/captures.md).",
            ),
            ReasonRow(
                "capture_missing",
                "invalid",
                "A capture's folder or file does not exist or is not a regular file.",
                "Check the path, and that the writer was closed without an exception.",
            ),
            ReasonRow(
                "capture_path",
                "invalid",
                "A capture names a file outside its own folder.",
                "Keep rows.safetensors beside capture.json; no links, no separators in its name.",
            ),
            ReasonRow(
                "capture_truncated",
                "invalid",
                "A safetensors file is shorter than its header says.",
                "Write the capture again; the disk may have been full.",
            ),
            ReasonRow(
                "capture_unreadable",
                "invalid",
                "A safetensors file has a header that is not of that format.",
                "Write the capture again with CaptureWriter.",
            ),
            ReasonRow(
                "capture_version",
                "invalid",
                "The capture has a format version that this bitgate does not read.",
                "Update bitgate, or write the capture with the capture.py of this version.",
            ),
            ReasonRow(
                "columns_disagree",
                "invalid",
                "A row column is missing, unknown, or has another length than the others.",
                "Write one value per row in every column.",
            ),
            ReasonRow(
                "counts_disagree",
                "invalid",
                "capture.json states other counts of rows or masked rows than the file holds.",
                "Write the capture again; do not edit its files.",
            ),
            ReasonRow(
                "dtype_wrong",
                "invalid",
                "A row column has another dtype than the format says.",
                "Use int64 for ids and positions, uint8 for the mask, float32 for logprobs.",
            ),
            ReasonRow(
                "duplicate_key",
                "invalid",
                "One key (sequence, turn, position) appears twice in a capture.",
                "Write each row once; of ranks that hold the same rows let only one write.",
            ),
            ReasonRow(
                "empty_mask",
                "invalid",
                "No row is under the response mask, so nothing would be compared.",
                "Check how the mask was built; it must be 1 on response tokens.",
            ),
            ReasonRow(
                "logprob_positive",
                "invalid",
                "A logprob under the mask is above zero.",
                "Check the sign and that it is a log-probability, not a logit.",
            ),
            ReasonRow(
                "mask_values",
                "invalid",
                "The mask holds values other than 0 and 1.",
                "Write the mask as 0 and 1.",
            ),
            ReasonRow(
                "not_finite",
                "invalid",
                "A logprob under the mask is NaN or infinite.",
                "Find the NaN or the -inf first: look at padding, at the mask, and at masked vocabulary lanes.",
            ),
            ReasonRow(
                "positions_not_increasing",
                "invalid",
                "Within a sequence, (turn, position) does not grow from row to row.",
                "Write the rows of a sequence in the order of its tokens.",
            ),
            ReasonRow(
                "rank_missing",
                "invalid",
                "The shard of a rank is missing, appears twice, or belongs to another capture.",
                "Collect the folders of all ranks of one capture.",
            ),
            ReasonRow(
                "sequence_repeated",
                "invalid",
                "The rows of a sequence are not together in a shard.",
                "Write all rows of a sequence together, and give each sequence its own number.",
            ),
            ReasonRow(
                "value_out_of_range",
                "invalid",
                "A sequence number, turn, position or token id is negative, or a token id is outside the vocabulary.",
                "Write indices as they are; leave padding rows out.",
            ),
        ),
        "Gradients": (
            ReasonRow(
                "gradient_differs",
                "fail",
                "A parameter's gradient is further from the float64 reference than rounding explains.",
                "The detail says what it looks like (scale, sign, transposed); check that operator's backward alone.",
            ),
            ReasonRow(
                "gradient_not_finite",
                "fail",
                "A parameter's gradient holds NaN or an infinity.",
                "Find the first operator whose backward produces it; check loss scaling and masked rows.",
            ),
            ReasonRow(
                "gradient_unexpected",
                "fail",
                "A frozen or unknown parameter received a gradient.",
                "Freeze it in the optimiser too, or take it off the list of frozen parameters.",
            ),
            ReasonRow(
                "gradient_unreached",
                "fail",
                "No gradient reached a parameter that is trained.",
                "Look for a detach, a no_grad block or requires_grad = False between it and the loss.",
            ),
            ReasonRow(
                "gradient_zero",
                "fail",
                "A parameter's gradient is exactly zero where the reference's is not.",
                "Look for a discrete choice, a detached branch or a mask that cuts it off.",
            ),
        ),
        "Slicing": (
            ReasonRow(
                "slice_bytes_differ",
                "fail",
                "A tensor of the slice does not have the bytes of its source.",
                "Look at the disk and at what else writes there; remove the slice and cut it again.",
            ),
            ReasonRow(
                "slice_config_broken",
                "invalid",
                "A JSON file of the checkpoint cannot be read, or does not describe the layers of its family.",
                "Repair the file that the detail names, or take the checkpoint from its source again.",
            ),
            ReasonRow(
                "slice_depth_dependent",
                "inconclusive",
                "The model's maths depends on how deep a layer lies, and the files do not hold what follows from it.",
                "Save the checkpoint with its buffers (transformers' save_pretrained writes them), then slice that.",
            ),
            ReasonRow(
                "slice_family_unknown",
                "inconclusive",
                "The model's family is not in the table of families, so its layers cannot be renumbered safely.",
                "Add one file to tools/slice/families (docs/slice_model.md says how).",
            ),
            ReasonRow(
                "slice_format",
                "inconclusive",
                "The folder is not a transformers checkpoint in safetensors.",
                "Convert the weights to safetensors with a config.json beside them.",
            ),
            ReasonRow(
                "slice_load_differs",
                "fail",
                "An engine found keys of the slice missing, unexpected or of another shape.",
                "Read the load report in the evidence; load the full model too, to see whether it loads cleanly.",
            ),
            ReasonRow(
                "slice_names_unknown",
                "inconclusive",
                "Some tensors or per-layer configuration keys are not known, and nothing was guessed about them.",
                "Add a rule for them to the model's family (tools/slice/families).",
            ),
            ReasonRow(
                "slice_needs_more_layers",
                "inconclusive",
                "No window within the limit holds every layer class and every adjacent pair of classes.",
                "Call again with the max_layers that the detail names, or name the layers yourself.",
            ),
            ReasonRow(
                "slice_no_room",
                "inconclusive",
                "There is not enough room on the disk for the slice; nothing was left there.",
                "Free the bytes that the detail names, or keep fewer layers.",
            ),
            ReasonRow(
                "slice_not_covering",
                "inconclusive",
                "The named layers do not hold every layer class and every adjacent pair of classes.",
                "Leave `layers` out to let the tool choose, or add the layers that the figures name.",
            ),
            ReasonRow(
                "slice_not_expressible",
                "invalid",
                "The family's configuration cannot describe the chosen layers.",
                "Choose a contiguous window, or leave `layers` out.",
            ),
            ReasonRow(
                "slice_not_proved",
                "inconclusive",
                "A proof that this model and machine allow was not run, or ended without a result.",
                "The detail says which; name a `side` whose interpreter has transformers, or give it more memory.",
            ),
            ReasonRow(
                "slice_path_escapes",
                "invalid",
                "A file of the checkpoint lies outside its folder.",
                "Put the files into the checkpoint's folder; links out of it are not followed.",
            ),
            ReasonRow(
                "slice_quant_differs",
                "fail",
                "The quantisation rules would decide a module otherwise in the slice than in the full model.",
                "Read which rule in the detail; write it with explicit module names in the checkpoint.",
            ),
            ReasonRow(
                "slice_shard_broken",
                "invalid",
                "A safetensors file is truncated, or its header is not of the format.",
                "Download or write that shard again.",
            ),
            ReasonRow(
                "slice_shard_missing",
                "invalid",
                "A shard of the checkpoint is not there.",
                "Download the shard that the detail names.",
            ),
            ReasonRow(
                "slice_tensor_missing",
                "invalid",
                "The index names tensors that are in no file.",
                "Take the index and the shards from one download; they do not belong together.",
            ),
            ReasonRow(
                "slice_window_differs",
                "fail",
                "The slice does not compute the full model's bits, given the full model's hidden state.",
                "The figures name the first layer; look there for maths that depends on depth or on other layers.",
            ),
        ),
        "Provenance": (
            ReasonRow(
                "bytecode_stale",
                "fail",
                "A module ran from bytecode that is not what its source compiles to, or that has no source.",
                "Delete the package's __pycache__ folders and run again.",
            ),
            ReasonRow(
                "code_moved_on",
                "fail",
                "A module's file was written after the process had imported it: the disk no longer holds what runs.",
                "Start the side again, and do not edit or check out its tree while it runs.",
            ),
            ReasonRow(
                "code_not_compared",
                "inconclusive",
                "Some functions could not be compared with their files: their code could not be read, or the time was "
                "over.",
                "Run check_provenance again on an idle machine; a module without a readable loader can only be "
                "excluded by not importing it.",
            ),
            ReasonRow(
                "code_replaced",
                "fail",
                "A function runs code that is not its file's, put there by something that is no unedited wheel (a "
                "monkey-patch).",
                "Remove the patch, or install it as a package that the side declares.",
            ),
            ReasonRow(
                "env_not_as_declared",
                "fail",
                "A rank does not have a variable with the value that its side declares.",
                "Let the launcher pass the environment to every rank; look for scripts that set or strip it.",
            ),
            ReasonRow(
                "env_not_delivered",
                "fail",
                "A variable that can change numbers stands in bitgate's own environment and did not reach a rank.",
                "Declare it in [side.NAME.env], or unset it where bitgate is started.",
            ),
            ReasonRow(
                "env_undeclared",
                "fail",
                "A rank has a variable that can change numbers and that its side does not declare.",
                "Declare it in [side.NAME.env], or unset it where bitgate or the launcher is started.",
            ),
            ReasonRow(
                "expectation_unmet",
                "fail",
                "Something that [side.NAME.expect] names was observed to be otherwise.",
                "Bring the side to what is expected, or correct the expectation.",
            ),
            ReasonRow(
                "file_added",
                "fail",
                "An imported file lies inside an installed package whose RECORD does not have it.",
                "Reinstall the package, or install the change as a package of its own.",
            ),
            ReasonRow(
                "file_edited",
                "fail",
                "An imported file or loaded library has other bytes than the wheel it came in.",
                "Reinstall the package; keep changes in a source tree with an editable installation and [side.NAME] "
                "source.",
            ),
            ReasonRow(
                "file_unreadable",
                "inconclusive",
                "A file that runs could not be hashed.",
                "Let the user that runs bitgate read it; on another host or in a container the worker hashes it "
                "itself.",
            ),
            ReasonRow(
                "jit_cache_older",
                "inconclusive",
                "Code compiled at run time came from a cache older than the code it was made from.",
                "Empty that cache and run again.",
            ),
            ReasonRow(
                "library_deleted",
                "fail",
                "A loaded library was deleted or replaced on the disk since it was loaded.",
                "Start the side again.",
            ),
            ReasonRow(
                "library_unowned",
                "inconclusive",
                "A loaded library belongs to no package and not to the system.",
                "Name it in expect.loaded if it is meant to be there; look at LD_PRELOAD and LD_LIBRARY_PATH.",
            ),
            ReasonRow(
                "not_observed",
                "inconclusive",
                "Something that was declared or is always looked at could not be observed.",
                "See what the detail names; without /proc or a rank's report nothing can be said about it.",
            ),
            ReasonRow(
                "ranks_differ",
                "fail",
                "Two ranks of a side run other files or have other variables.",
                "Install the same environment on every host and pass the same variables to every rank.",
            ),
            ReasonRow(
                "source_differs",
                "fail",
                "A module that runs has other bytes than its file in the tree of [side.NAME] source.",
                "Install that tree, or name the tree that is really installed.",
            ),
            ReasonRow(
                "tree_dirty",
                "fail",
                "The git tree of a package whose commit is expected has changed or untracked files.",
                "Commit them, and expect that commit.",
            ),
            ReasonRow(
                "two_copies",
                "fail",
                "One package is on the path twice, so that the folder or the order decides which one runs.",
                "Remove one of them; do not start from a folder that shadows a package.",
            ),
            ReasonRow(
                "worker_unobserved",
                "inconclusive",
                "A process of the side computes where it was not observed.",
                "Use a launcher that starts bitgate's worker as every rank.",
            ),
        ),
        "Speed": (
            ReasonRow(
                "baseline_contaminated",
                "invalid",
                "A batch-invariant library or kernel was active in the baseline, which slows it.",
                "Remove it from the baseline's environment; its presence alone can switch kernels.",
            ),
            ReasonRow(
                "baseline_drift",
                "invalid",
                "The baseline that ran is not the one that a person froze.",
                "Put its configuration and environment back, or propose a new version.",
            ),
            ReasonRow(
                "baseline_slowed",
                "invalid",
                "The baseline is slower than the band that it was frozen with.",
                "Find what slows it: other processes, clocks, another workload; then measure again.",
            ),
            ReasonRow(
                "below_floor",
                "fail",
                "The whole interval lies below the floor.",
                "Look at breakdown=true for the most expensive operators, and win them back.",
            ),
            ReasonRow(
                "clock_jumped",
                "invalid",
                "The clocks of a turn do not agree, or times run backwards.",
                "Run on a machine that is not suspended or migrated, then measure again.",
            ),
            ReasonRow(
                "device_busy",
                "inconclusive",
                "Other processes used the device while it was measured.",
                "Measure on an idle device.",
            ),
            ReasonRow(
                "floor_not_shown",
                "inconclusive",
                "The interval holds the floor: neither at least nor below it was shown.",
                "Measure more blocks, or on a quieter machine.",
            ),
            ReasonRow(
                "image_differs",
                "invalid",
                "The two sides ran in different images.",
                "Run both in the delivery image.",
            ),
            ReasonRow(
                "kernels_differ",
                "invalid",
                "The engines chose other kernels than their options and expectations declare.",
                "Declare them in [side.NAME.expect.backends], or configure both sides alike.",
            ),
            ReasonRow(
                "no_fresh_bit_pass",
                "inconclusive",
                "No run_compare rollout_vs_trainer pass exists for this very side and model: the speed is void.",
                'Run run_compare(check="rollout_vs_trainer") on the side as it is now, then measure again.',
            ),
            ReasonRow(
                "no_significant_change",
                "inconclusive",
                "The difference is smaller than what this run could have detected, or its interval holds 1.",
                "Do not claim a change; measure more blocks if a smaller effect matters.",
            ),
            ReasonRow(
                "null_run_biased",
                "inconclusive",
                "The interval of the A/A run does not hold 1: something favours one place over the other.",
                "Measure again; one run in twenty or fewer does this by chance. Look for other load if it stays.",
            ),
            ReasonRow(
                "order_confounded",
                "invalid",
                "The order of turns favours a side: not in balanced blocks, or warmed up unequally.",
                "Let ab_benchmark run its own schedule to the end.",
            ),
            ReasonRow(
                "requests_failed",
                "invalid",
                "Requests failed during the measurement.",
                "Look at the server's log; measure again when every request is served.",
            ),
            ReasonRow(
                "slower",
                "fail",
                "The side is slower than the other one.",
                "Keep the other one.",
            ),
            ReasonRow(
                "throttled",
                "invalid",
                "The device throttled while it was measured.",
                "Cool it, fix its clocks or raise its quota; then measure again.",
            ),
            ReasonRow(
                "token_counts_differ",
                "invalid",
                "The sides did not produce the same numbers of tokens.",
                "Force equal lengths (ignore_eos, max_tokens), and look for requests that were cut.",
            ),
            ReasonRow(
                "too_few_pairs",
                "inconclusive",
                "Fewer than six pairs of turns were measured.",
                "Use blocks=6 or more.",
            ),
            ReasonRow(
                "too_good",
                "inconclusive",
                "The side is faster than what can be believed without an explanation.",
                "Tune the baseline with what made the side faster, or find the work that the side leaves out.",
            ),
            ReasonRow(
                "transport_differs",
                "invalid",
                "The sides talk over different transports, which the configuration does not declare.",
                "Set the same NCCL, NVSHMEM and DeepEP variables on both sides, or declare expect.transport on both.",
            ),
        ),
        "Not enough observed": (
            ReasonRow(
                "axis_not_exercised",
                "inconclusive",
                "An axis that the side's deployment uses was not exercised.",
                "Exercise it (another workload or option), or remove it from the side's axes if it is not deployed.",
            ),
            ReasonRow(
                "engine_unsupported",
                "inconclusive",
                "The side's engine cannot do what the check needs.",
                "The detail names the model, operator, option or step; use a side whose engine has it.",
            ),
            ReasonRow(
                "leg_missing",
                "inconclusive",
                "A leg that this check needs was not captured.",
                "Capture rollout, recompute and first_train_forward.",
            ),
            ReasonRow(
                "partial_coverage",
                "inconclusive",
                "Not every row that had to be compared was observed.",
                "Capture the missing rows; the figures say how many.",
            ),
            ReasonRow(
                "self_test_failed",
                "inconclusive",
                "The comparison did not find every fault that was planted in a copy of its own data.",
                "Do not trust this comparison; report it with the evidence's self_test.",
            ),
            ReasonRow(
                "weights_unreadable",
                "inconclusive",
                "Not all of an engine's resident weights could be read back, so that their digest proves nothing.",
                "Load the model in a format that the engine keeps readable; the detail names the first tensor.",
            ),
        ),
    }
)

REASONS: Final[Mapping[str, ReasonRow]] = MappingProxyType({row.code: row for rows in TABLE.values() for row in rows})

PRECEDENCE: Final[tuple[Verdict, ...]] = ("invalid", "fail", "inconclusive")


def reason(code: str, detail: str) -> Reason:
    """A reason for a verdict; `detail` says in one sentence what was seen.

    Raises:
        KeyError: the code is not in the table.
    """
    if code not in REASONS:
        raise KeyError(f"unknown reason code {code!r}; add a row to bitgate.tools.reasons.TABLE")
    clean = detail.encode("utf-8", "replace").decode("utf-8")
    return Reason(code=code, detail=clean if len(clean) <= DETAIL_LIMIT else clean[: DETAIL_LIMIT - 1] + "…")


def verdict_of(reasons: Iterable[Reason]) -> Verdict:
    """The verdict that reasons lead to: invalid before fail before inconclusive; `pass` when there is none."""
    found = {REASONS[item.code].verdict for item in reasons}
    return next((verdict for verdict in PRECEDENCE if verdict in found), "pass")


def next_step(reasons: Iterable[Reason]) -> str:
    """What to do next: the advice of the first reason that decides the verdict; empty when there is none."""
    listed = list(reasons)
    deciding = verdict_of(listed)
    return next((REASONS[item.code].next for item in listed if REASONS[item.code].verdict == deciding), "")


def render() -> str:
    """docs/reasons.md."""
    lines = [
        "# Reason codes",
        "",
        "Every verdict that is not `pass` carries at least one of these. The page is made from the table in",
        "`tools/reasons.py`: `python -m bitgate.tools.reasons > docs/reasons.md`.",
        "When reasons of several verdicts meet, `invalid` decides before `fail`, and `fail` before `inconclusive`.",
    ]
    for group, rows in TABLE.items():
        lines += ["", f"## {group}", "", "| code | verdict | meaning | what to do next |", "|---|---|---|---|"]
        lines += [f"| `{row.code}` | `{row.verdict}` | {row.meaning} | {row.next} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
