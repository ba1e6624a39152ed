-- Where did the ranks of one collective make different calls, and which rank called what?
-- Needs: Flight Recorder dumps.
select groups.description as group_desc, matches.seq, collectives.op, input_sizes, output_sizes, input_dtypes,
       count(*) as n_ranks, list(rank order by rank)[:8] as first_ranks, any_value(file || ':' || line) as place
from matches
join collectives using (match_id)
join groups on groups.group_id = matches.group_id
left join frames on frame_id = site_id
where n_signatures > 1
group by match_id, groups.description, matches.seq, collectives.op, input_sizes, output_sizes, input_dtypes
order by match_id, n_ranks desc
