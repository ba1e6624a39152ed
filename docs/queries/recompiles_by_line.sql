-- Which functions were recompiled, why, and what did it cost?
-- Needs: TORCH_TRACE logs.
with causes as (
    select file_id, rank, compile_id, string_agg(distinct cause, ', ' order by cause) as causes,
           string_agg(distinct subject, ', ' order by subject) as subjects
    from recompiles
    group by file_id, rank, compile_id
)
select file || ':' || line as place, function, causes, subjects, count(distinct rank) as n_ranks,
       count(*) as n_recompiles, round(sum(duration_ns) / 1e9, 3) as cost_s
from causes
left join compilations using (file_id, rank, compile_id)
group by all
order by cost_s desc nulls last, n_recompiles desc, place
limit 20
