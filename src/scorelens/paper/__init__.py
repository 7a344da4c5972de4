"""The paper's tables and figures: presets beside its numbers, the cells they measure, the runner, the results."""
