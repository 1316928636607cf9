"""The planner: it finds the plan by which a call runs, or makes one."""
