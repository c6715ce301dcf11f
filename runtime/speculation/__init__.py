"""Drafts for exact speculation: where guesses come from, how many are worth their rows, and when to stop guessing.

Model-neutral, synchronous and free of clocks. The engine that evaluates drafts knows `runtime.engine.drafting.Drafter` only.
"""

from tripower.runtime.speculation.controller import SLOWEST, Controller
from tripower.runtime.speculation.draft_model import DraftModel
from tripower.runtime.speculation.drafted_engine import DraftedEngine
from tripower.runtime.speculation.drafter import AdaptiveDrafter, FixedDrafter, make_drafter, resolve
from tripower.runtime.speculation.lookup import Lookup, Source
from tripower.runtime.speculation.model_drafter import ModelDrafter, make_model_drafter
from tripower.runtime.speculation.model_source import ModelSource
from tripower.runtime.speculation.settings import SpeculationSettings, Strategy, read_strategy
from tripower.runtime.speculation.simulate import Member, Simulation, simulate, simulate_together

__all__ = [
    "SLOWEST",
    "AdaptiveDrafter",
    "Controller",
    "DraftModel",
    "DraftedEngine",
    "FixedDrafter",
    "Lookup",
    "Member",
    "ModelDrafter",
    "ModelSource",
    "Simulation",
    "Source",
    "SpeculationSettings",
    "Strategy",
    "make_drafter",
    "make_model_drafter",
    "read_strategy",
    "resolve",
    "simulate",
    "simulate_together",
]
