// Counts of codes [channels, tokens] below N: of codes and of token deltas by channel, of
// neighbours of both in all channels, and the codes at some places; one behind the other.
// A block of threads takes channel after channel. Where pairs are few they are counted in
// shared memory, too, and added up once a block.
constexpr int M = 2 * N - 1;
constexpr int FEW = N <= 32 ? N * N : 1;
constexpr int FEW_DELTAS = N <= 32 ? M * M : 1;
__shared__ int raw[N], delta[M], pairs_here[FEW], delta_pairs_here[FEW_DELTAS];

const int channels = codes_shape[0], tokens = codes_shape[1], n_places = places_shape[0];
int* raw_out = counts;
int* delta_out = raw_out + channels * N;
int* pairs_out = delta_out + channels * M;
int* delta_pairs_out = pairs_out + N * N;
int* edges_out = delta_pairs_out + M * M;
int* pairs = N <= 32 ? pairs_here : pairs_out;
int* delta_pairs = N <= 32 ? delta_pairs_here : delta_pairs_out;

for (int i = threadIdx.x; i < FEW; i += blockDim.x) pairs_here[i] = 0;
for (int i = threadIdx.x; i < FEW_DELTAS; i += blockDim.x) delta_pairs_here[i] = 0;
for (int channel = blockIdx.x; channel < channels; channel += gridDim.x) {
  for (int i = threadIdx.x; i < N; i += blockDim.x) raw[i] = 0;
  for (int i = threadIdx.x; i < M; i += blockDim.x) delta[i] = 0;
  __syncthreads();
  const unsigned char* row = codes + (size_t)channel * tokens;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) {
    // values that are not finite have any code, and are refused only later
    const int now = min((int)row[t], N - 1);
    const int before = t > 0 ? min((int)row[t - 1], N - 1) : 0;
    const int change = now - before + N - 1;
    atomicAdd(raw + now, 1);
    atomicAdd(delta + change, 1);
    if (t > 0) {
      const int earlier = t > 1 ? min((int)row[t - 2], N - 1) : 0;
      atomicAdd(pairs + before * N + now, 1);
      atomicAdd(delta_pairs + (before - earlier + N - 1) * M + change, 1);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < N; i += blockDim.x) raw_out[channel * N + i] = raw[i];
  for (int i = threadIdx.x; i < M; i += blockDim.x) delta_out[channel * M + i] = delta[i];
  for (int i = threadIdx.x; i < n_places; i += blockDim.x)
    edges_out[channel * n_places + i] = row[places[i]];
  __syncthreads();
}
if (N <= 32) {
  for (int i = threadIdx.x; i < FEW; i += blockDim.x)
    if (pairs_here[i]) atomicAdd(pairs_out + i, pairs_here[i]);
  for (int i = threadIdx.x; i < FEW_DELTAS; i += blockDim.x)
    if (delta_pairs_here[i]) atomicAdd(delta_pairs_out + i, delta_pairs_here[i]);
}
