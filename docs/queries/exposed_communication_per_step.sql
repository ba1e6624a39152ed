-- How much of each step is exposed communication, and which rank has the most?
-- Needs: profiler traces.
select step, count(*) as n_ranks, round(median(duration_ns) / 1e6, 3) as median_step_ms,
       round(median(communication_ns) / 1e6, 3) as median_exposed_ms,
       round(100 * sum(communication_ns) / sum(duration_ns), 1) as exposed_pct,
       round(max(communication_ns) / 1e6, 3) as most_exposed_ms, arg_max(rank, communication_ns) as most_exposed_rank
from step_breakdown
group by step
order by step
