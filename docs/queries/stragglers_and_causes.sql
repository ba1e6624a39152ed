-- Which rank slows the job down, by how much per step, and what does it spend the time on?
-- Needs: profiler traces of several ranks.
select stragglers.rank, n_late_steps, n_steps, round(cost_ns / 1e6, 3) as cost_ms_per_step,
       round(cost_pct, 1) as cost_pct, part, cause, round(own_ns / 1e6, 3) as own_ms,
       round(peers_ns / 1e6, 3) as peers_ms
from stragglers
left join late_causes on late_causes.rank = stragglers.rank and is_main
where n_late_steps > 0
order by cost_ns desc, stragglers.rank
limit 20
