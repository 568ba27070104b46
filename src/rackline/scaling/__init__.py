"""Scaling laws: parameters and tokens for a given quality, and how long to train a model that will be deployed."""

from rackline.scaling.budget import Budget, PhaseCost, PhaseMfu, Usage, budget, lifetime_flop_per_param
from rackline.scaling.chinchilla import (
    Allocation,
    Frontier,
    chinchilla_tokens,
    compute_optimal,
    compute_optimal_of_loss,
    compute_optimal_of_params,
    frontier,
    overtraining_factor,
    train_flop,
)
from rackline.scaling.data_constrained import effective_tokens, tokens_of_effective
from rackline.scaling.fit import FittedLaw, fit_frontier, fit_loss_law, isoflop_minimum
from rackline.scaling.law import LossLaw, loss, loss_law, tokens_for_loss
from rackline.scaling.optimum import (
    LifetimeOptimum,
    flop_over_life,
    implied_lifetime_flop_per_param,
    lifetime_flop_of,
    optimal_allocation,
    optimal_tokens_of_params,
)
from rackline.scaling.overtrain import (
    EqualCosts,
    equal_cost_ratio,
    equal_costs,
    lifetime_tokens,
    power_sum_minimum,
)
from rackline.scaling.points import fit_file
from rackline.scaling.routed import (
    RoutedLaw,
    dense_equivalent_params,
    joint_law,
    routed_law,
    routed_loss,
    routed_num_experts,
    routed_total_params,
    saturated_experts,
)
from rackline.scaling.runs import KnownRun, Trained, chip_hours_of_flop, known_run, known_runs, run_mfu, trained

__all__ = [
    "Allocation",
    "Budget",
    "EqualCosts",
    "FittedLaw",
    "Frontier",
    "KnownRun",
    "LifetimeOptimum",
    "LossLaw",
    "PhaseCost",
    "PhaseMfu",
    "RoutedLaw",
    "Trained",
    "Usage",
    "budget",
    "chinchilla_tokens",
    "chip_hours_of_flop",
    "compute_optimal",
    "compute_optimal_of_loss",
    "compute_optimal_of_params",
    "dense_equivalent_params",
    "effective_tokens",
    "equal_cost_ratio",
    "equal_costs",
    "fit_file",
    "fit_frontier",
    "fit_loss_law",
    "flop_over_life",
    "frontier",
    "implied_lifetime_flop_per_param",
    "isoflop_minimum",
    "joint_law",
    "known_run",
    "known_runs",
    "lifetime_flop_of",
    "lifetime_flop_per_param",
    "lifetime_tokens",
    "loss",
    "loss_law",
    "optimal_allocation",
    "optimal_tokens_of_params",
    "overtraining_factor",
    "power_sum_minimum",
    "routed_law",
    "routed_loss",
    "routed_num_experts",
    "routed_total_params",
    "run_mfu",
    "saturated_experts",
    "tokens_for_loss",
    "tokens_of_effective",
    "train_flop",
    "trained",
]
