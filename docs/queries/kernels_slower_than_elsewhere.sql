-- Which kernels take longer on one rank than on the median rank, and what does that add up to?
-- Needs: profiler traces of several ranks.
with compared as (
    select rank, name, n_kernels, mean_ns, median(mean_ns) over (partition by name) as median_ns,
           count(*) over (partition by name) as n_ranks
    from kernel_breakdown
    where type = 'computation'
)
select rank, name, n_kernels, round(mean_ns / 1e3, 1) as mean_us, round(median_ns / 1e3, 1) as median_rank_us,
       round(mean_ns / median_ns, 2) as ratio, round((mean_ns - median_ns) * n_kernels / 1e6, 3) as excess_ms
from compared
where n_ranks > 1 and median_ns > 0
order by excess_ms desc, rank, name
limit 20
