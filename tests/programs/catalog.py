"""All programs: the row of the table of workloads that each stands for, its items, and why it is not compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import agents
import documents
import few_shot
import trees

import ramet as rt


@dataclass(frozen=True)
class Case:
    """``items``: arguments of its runs, for a test or (True) of the sizes that the workload has. ``live``: what says
    that it cannot be compiled."""

    row: str
    program: rt.Function[Any]
    items: Callable[[bool], list[tuple[object, ...]]]
    live: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.program.name


CASES = (
    Case("1", few_shot.mmlu, few_shot.mmlu_items),
    Case("2", few_shot.hellaswag, few_shot.hellaswag_items),
    Case("2", few_shot.hellaswag_greedy, few_shot.hellaswag_greedy_items),
    Case("3", few_shot.gsm8k, few_shot.gsm8k_items),
    Case("4", trees.tree_of_thought, trees.tree_items),
    Case("4", trees.beam_of_thought, trees.beam_items, "the running program is asked for something"),
    Case("5", trees.skeleton_of_thought, trees.skeleton_items),
    Case("6", agents.react_replay, agents.replay_items),
    Case("6", agents.react_actions, agents.react_items),
    Case("6", agents.react_live, agents.react_items, "variable 'query' is looked at"),
    Case("7", agents.poignancy, agents.poignancy_items),
    Case("7", agents.agent_event, agents.event_items),
    Case("8", trees.judge, trees.judge_items),
    Case("9", documents.json_whole, documents.json_items),
    Case("9", documents.json_regex, documents.json_items),
    Case("10", documents.json_by_field, documents.json_items),
    Case("11", documents.document_qa, documents.qa_items),
    Case("11", documents.multi_document, documents.multi_items),
    Case("12", documents.chat, documents.chat_items),
    Case("12", documents.chat, documents.long_chat_items, label="chat_long"),
    Case("13", documents.mtbench, documents.mtbench_items),
    Case("14", documents.rag, documents.rag_items),
    Case("15", trees.self_consistency, trees.consistency_items),
    Case("15", trees.multi_chain, trees.chain_items),
    Case("15", trees.cot_decoding, trees.cot_items, "get_meta_info('first') is read"),
    Case("16", agents.tool_agent, agents.tool_items),
    Case("17", agents.debate, agents.debate_items),
)
