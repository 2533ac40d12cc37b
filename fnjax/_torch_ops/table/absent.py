"""Operations of torch that JAX code cannot replace: why, and what to write instead."""

from fnjax._torch_ops.registry import add_absent, add_absent_modules, mark_running

add_absent(
    """
    torch.choose_qparams_optimized torch.dequantize torch.empty_quantized torch.fbgemm_linear_fp16_weight
    torch.fbgemm_linear_fp16_weight_fp32_activation torch.fbgemm_linear_int8_weight
    torch.fbgemm_linear_int8_weight_fp32_activation torch.fbgemm_linear_quantize_weight
    torch.fbgemm_pack_gemm_matrix_fp16 torch.fbgemm_pack_quantized_matrix torch.fused_moving_avg_obs_fake_quant
    torch.int_repr torch.q_per_channel_axis torch.q_per_channel_scales torch.q_per_channel_zero_points torch.q_scale
    torch.q_zero_point torch.quantize_per_channel torch.quantize_per_tensor torch.quantize_per_tensor_dynamic
    torch.quantized_batch_norm torch.quantized_gru torch.quantized_gru_cell torch.quantized_lstm
    torch.quantized_lstm_cell torch.quantized_max_pool1d torch.quantized_max_pool2d torch.quantized_max_pool3d
    torch.quantized_rnn_relu_cell torch.quantized_rnn_tanh_cell .dequantize .int_repr .q_per_channel_axis
    .q_per_channel_scales .q_per_channel_zero_points .q_scale .q_zero_point .qscheme
    """,
    "works on quantized tensors, which JAX has not",
    "keep the integers and their scale in two arrays",
)

add_absent(
    """
    torch.ccol_indices_copy torch.col_indices_copy torch.crow_indices_copy torch.hsmm torch.hspmm torch.indices_copy
    torch.resize_as_sparse_ torch.row_indices_copy torch.saddmm torch.segment_reduce torch.smm
    torch.sparse_bsc_tensor torch.sparse_bsr_tensor torch.sparse_compressed_tensor torch.sparse_coo_tensor
    torch.sparse_csc_tensor torch.sparse_csr_tensor torch.spmm torch.sspaddmm torch.values_copy .ccol_indices
    .coalesce .col_indices .crow_indices .dense_dim .indices .is_coalesced .resize_as_sparse_ .row_indices .smm
    .sparse_dim .sparse_mask .sparse_resize_ .sparse_resize_and_clear_ .sspaddmm .to_mkldnn .to_sparse
    .to_sparse_bsc .to_sparse_bsr .to_sparse_coo .to_sparse_csc .to_sparse_csr .values
    """,
    "works on sparse tensors",
    "use jax.experimental.sparse, or a dense array",
)

add_absent(
    """
    torch.batch_norm_backward_elemt torch.batch_norm_backward_reduce torch.batch_norm_elemt
    torch.batch_norm_gather_stats torch.batch_norm_gather_stats_with_counts torch.batch_norm_stats
    torch.batch_norm_update_stats torch.conv_tbc torch.cudnn_affine_grid_generator
    torch.cudnn_batch_norm torch.cudnn_convolution torch.cudnn_convolution_add_relu torch.cudnn_convolution_relu
    torch.cudnn_convolution_transpose torch.cudnn_grid_sampler torch.cudnn_is_acceptable torch.grid_sampler_3d
    torch.miopen_batch_norm torch.miopen_convolution
    torch.miopen_convolution_add_relu torch.miopen_convolution_relu torch.miopen_convolution_transpose
    torch.miopen_ctc_loss torch.miopen_depthwise_convolution torch.miopen_rnn torch.mkldnn_adaptive_avg_pool2d
    torch.mkldnn_convolution torch.mkldnn_linear_backward_weights torch.mkldnn_max_pool2d torch.mkldnn_max_pool3d
    torch.mkldnn_rnn_layer torch.native_batch_norm torch.native_dropout torch.native_group_norm torch.native_norm
    torch.norm_except_dim F.conv_tbc F.grouped_mm F.linear_cross_entropy F.scaled_grouped_mm F.scaled_mm
    """,
    "is a kernel or an internal operation of PyTorch",
    "call the function of torch.nn.functional that it serves, or supply the kernel (Pallas, jax.ffi)",
)

add_absent(
    """
    torch.binary_cross_entropy_with_logits torch.cosine_embedding_loss torch.hinge_embedding_loss
    torch.instance_norm torch.kl_div torch.margin_ranking_loss torch.poisson_nll_loss torch.triplet_margin_loss
    """,
    "is internal and takes its reduction or its options as bare numbers",
    "call the function of that name in torch.nn.functional",
)

add_absent(
    """
    torch.ctc_loss torch.embedding_bag torch.embedding_renorm_
    F.multi_head_attention_forward
    """,
    "is a whole layer that JAX leaves to other libraries",
    "write it with jax.lax.scan, or use Flax or Optax",
)

add_absent(
    "torch.nn.CrossMapLRN2d torch.nn.modules.CrossMapLRN2d",
    "keeps the first channel in the windows of all later ones",
    "use torch.nn.LocalResponseNorm",
)
add_absent("torch.optim", "changes parameters in place", "use optax, on dict(model.named_parameters())")
add_absent_modules("torch.optim", "changes parameters in place", "use optax, on dict(model.named_parameters())")
add_absent(
    "torch.save",
    "writes a file that PyTorch reads",
    "use orbax, or safetensors.numpy.save_file, on fnjax.torch.jax_view(model.state_dict())",
)
add_absent("torch.nn.DataParallel", "copies a module to several GPUs", "use jax.sharding, or jax.shard_map")

add_absent(
    """
    torch.as_strided torch.as_strided_ torch.as_strided_copy torch.as_strided_scatter torch.is_storage
    torch.slice_copy torch.slice_inverse .as_strided .as_strided_ .as_strided_scatter
    .const_data_ptr .data_ptr .dim_order .is_set_to .module_load .resize .resize_as
    .set_ .slice_inverse .storage .storage_offset .storage_type .stride .untyped_storage
    """,
    "speaks of memory and strides, which JAX arrays do not show",
    "write it with indexing, reshape and transpose",
)

add_absent(
    """
    torch.is_anomaly_check_nan_enabled torch.is_anomaly_enabled torch.is_grad_enabled
    torch.is_inference_mode_enabled torch.set_anomaly_enabled .backward .grad .grad_dtype .grad_fn .is_leaf .name
    .output_nr .register_hook .register_post_accumulate_grad_hook .reinforce .requires_grad .retain_grad
    .retains_grad .volatile
    """,
    "belongs to PyTorch's graph of recorded operations, which JAX has not",
    "use jax.grad or jax.vjp; in a Function, ctx.needs_input_grad",
)

add_absent(
    """
    torch.are_deterministic_algorithms_enabled torch.autocast_decrement_nesting torch.autocast_increment_nesting
    torch.clear_autocast_cache torch.compiled_with_cxx11_abi torch.get_autocast_cpu_dtype torch.get_autocast_dtype
    torch.get_autocast_gpu_dtype torch.get_autocast_ipu_dtype torch.get_autocast_xla_dtype torch.get_default_device
    torch.get_deterministic_debug_mode torch.get_device_module torch.get_file_path
    torch.get_float32_matmul_precision torch.get_num_interop_threads torch.get_num_threads torch.get_rng_state
    torch.init_num_threads torch.is_autocast_cache_enabled torch.is_autocast_cpu_enabled torch.is_autocast_enabled
    torch.is_autocast_ipu_enabled torch.is_autocast_xla_enabled torch.is_deterministic_algorithms_warn_only_enabled
    torch.is_vulkan_available torch.is_warn_always_enabled torch.prepare_multiprocessing_environment
    torch.profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 torch.set_autocast_cache_enabled
    torch.set_autocast_cpu_dtype torch.set_autocast_cpu_enabled torch.set_autocast_dtype torch.set_autocast_enabled
    torch.set_autocast_gpu_dtype torch.set_autocast_ipu_dtype torch.set_autocast_ipu_enabled
    torch.set_autocast_xla_dtype torch.set_autocast_xla_enabled torch.set_default_device torch.set_default_dtype
    torch.set_default_tensor_type torch.set_deterministic_debug_mode torch.set_float32_matmul_precision
    torch.set_flush_denormal torch.set_num_interop_threads torch.set_num_threads torch.set_printoptions
    torch.set_rng_state torch.set_warn_always torch.use_deterministic_algorithms .record_stream
    """,
    "reads or sets a global state of PyTorch",
    "leave it out, or set it in jax.config",
)

add_absent(
    """
    torch.initial_seed torch.manual_seed torch.seed torch.thread_safe_generator .random_
    """,
    "changes the state of a random generator",
    "pass a jax.random key",
)

add_absent(
    """
    torch.classproperty torch.compile torch.cond torch.fork torch.from_dlpack torch.from_file torch.frombuffer
    torch.import_ir_module torch.import_ir_module_from_buffer torch.load torch.merge_type_from_type_comment
    torch.parse_ir torch.parse_schema torch.parse_type_comment torch.sym_constrain_range
    torch.sym_constrain_range_for_size torch.sym_float torch.sym_fresh_size torch.sym_int torch.sym_ite
    torch.sym_max torch.sym_min torch.sym_not torch.sym_sqrt torch.sym_sum torch.to_dlpack torch.typename
    torch.unify_type_list torch.wait torch.while_loop F.Optional F.assert_int_or_pair F.boolean_dispatch
    F.handle_torch_function F.has_torch_function F.has_torch_function_unary F.has_torch_function_variadic
    """,
    "is machinery of PyTorch, no operation on numbers",
    "leave it out, or use JAX's own: jax.jit, jax.lax.cond, jax.lax.while_loop, jax.dlpack",
)

add_absent(
    """
    torch.hash_tensor torch.lobpcg torch.lstsq torch.matrix_rank
    torch.pca_lowrank torch.range torch.solve torch.svd_lowrank torch.eig linalg.ldl_factor linalg.ldl_factor_ex
    linalg.ldl_solve .apply_ .chalf .eig .hash_tensor .index .lstsq .map2_ .map_ .solve
    """,
    "is deprecated, internal, or an algorithm that JAX has not",
    "use torch.linalg's newer functions, or write it with jax.numpy",
)

add_absent(
    """
    torch.adaptive_max_pool1d torch.histogramdd
    F.adaptive_max_pool1d_with_indices F.adaptive_max_pool2d_with_indices F.adaptive_max_pool3d_with_indices
    F.fractional_max_pool2d_with_indices F.fractional_max_pool3d_with_indices
    .to_padded_tensor
    """,
    "has no counterpart in JAX",
    "write it with jax.numpy",
)

add_absent(
    """
    torch.AcceleratorError torch.AggregationType torch.AliasDb torch.AnyType torch.Argument torch.ArgumentSpec
    torch.AwaitType torch.BFloat16Storage torch.BenchmarkConfig torch.BenchmarkExecutionStats torch.Block
    torch.BoolStorage torch.BoolType torch.BufferDict torch.ByteStorage torch.CallStack torch.Capsule
    torch.CharStorage torch.ClassType torch.Code torch.CompilationUnit torch.CompleteArgumentSpec
    torch.ComplexDoubleStorage torch.ComplexFloatStorage torch.ComplexType torch.ConcreteModuleType
    torch.ConcreteModuleTypeBuilder torch.DeepCopyMemoTable torch.DeserializationStorageContext torch.DeviceObjType
    torch.DictType torch.DisableTorchFunction torch.DisableTorchFunctionSubclass torch.DispatchKey
    torch.DispatchKeySet torch.DoubleStorage torch.EnumType torch.ErrorReport torch.Event
    torch.ExcludeDispatchKeyGuard torch.ExecutionPlan torch.FatalError torch.FileCheck torch.FloatStorage
    torch.FloatType torch.FunctionSchema torch.Future torch.FutureType torch.GradScaler
    torch.Gradient torch.Graph torch.GraphExecutorState torch.HalfStorage torch.IODescriptor torch.InferredType
    torch.IntStorage torch.IntType torch.InterfaceType torch.JITException torch.ListType torch.LiteScriptModule
    torch.LockingLogger torch.LoggerBase torch.LongStorage torch.ModuleDict torch.Node torch.NoneType
    torch.NoopLogger torch.NumberType torch.OperatorInfo torch.OptionalType torch.OutOfMemoryError
    torch.ParameterDict torch.PyObjectType torch.PyTorchFileReader torch.PyTorchFileWriter torch.QInt32Storage
    torch.QInt8Storage torch.QUInt2x4Storage torch.QUInt4x2Storage torch.QUInt8Storage torch.RRefType
    torch.ScriptClass torch.ScriptClassFunction torch.ScriptDict torch.ScriptDictIterator
    torch.ScriptDictKeyIterator torch.ScriptFunction torch.ScriptList torch.ScriptListIterator torch.ScriptMethod
    torch.ScriptModule torch.ScriptModuleSerializer torch.ScriptObject torch.ScriptObjectProperty
    torch.SerializationStorageContext torch.ShortStorage torch.StaticModule torch.Storage torch.StorageBase
    torch.Stream torch.StreamObjType torch.StringType torch.SymBool torch.SymBoolType torch.SymFloat torch.SymInt
    torch.SymIntType torch.Tag torch.TensorType torch.ThroughputBenchmark torch.TracingState torch.TupleType
    torch.Type torch.TypedStorage torch.UnionType torch.UntypedStorage torch.Use torch.Value torch.autocast
    torch.dtype torch.enable_grad torch.inference_mode torch.layout torch.memory_format torch.no_grad torch.qscheme
    torch.set_grad_enabled
    """,
    "is a class of PyTorch",
    "use what JAX has for its purpose, if anything",
)

mark_running(
    """
    torch.native_batch_norm torch.native_group_norm torch.norm_except_dim F.linear_cross_entropy torch.embedding_renorm_
    F.multi_head_attention_forward torch.nn.CrossMapLRN2d torch.nn.modules.CrossMapLRN2d torch.nn.DataParallel
    torch.as_strided torch.as_strided_copy torch.as_strided_scatter .as_strided .as_strided_ .as_strided_scatter
    .data_ptr .set_ .storage .storage_offset .stride .untyped_storage torch.is_anomaly_enabled torch.is_grad_enabled
    torch.is_inference_mode_enabled .backward .grad .grad_fn .is_leaf .register_hook
    .register_post_accumulate_grad_hook .requires_grad .retain_grad torch.are_deterministic_algorithms_enabled
    torch.clear_autocast_cache torch.get_autocast_cpu_dtype torch.get_autocast_dtype torch.get_autocast_gpu_dtype
    torch.get_default_device torch.get_deterministic_debug_mode torch.get_device_module torch.get_float32_matmul_precision
    torch.get_num_interop_threads torch.get_num_threads torch.get_rng_state torch.is_autocast_cpu_enabled
    torch.is_autocast_enabled torch.is_deterministic_algorithms_warn_only_enabled torch.set_default_dtype
    torch.set_default_tensor_type torch.set_deterministic_debug_mode torch.set_float32_matmul_precision
    torch.set_num_interop_threads torch.set_num_threads torch.set_printoptions torch.set_rng_state
    torch.use_deterministic_algorithms .record_stream torch.initial_seed torch.manual_seed torch.compile torch.range
    torch.Event torch.Stream torch.SymBool torch.SymFloat torch.SymInt torch.Tag torch.autocast torch.dtype torch.enable_grad
    torch.inference_mode torch.no_grad torch.set_grad_enabled
    """
)

# Everything below these modules.
add_absent_modules(
    "torch.distributed torch.distributed.nn torch.futures torch.distributed.nn.functional",
    "is a collective or a part of one",
    "use jax.lax.psum, all_gather, ppermute or all_to_all inside jax.shard_map",
)
add_absent_modules(
    "torch.cuda torch.cuda.nvtx torch.backends torch.mps torch.xpu torch.cpu torch.accelerator",
    "speaks of a device",
    "leave it out: JAX places arrays by itself; jax.named_scope and jax.profiler mark stretches of code",
)
add_absent_modules(
    "torch.ops torch.utils.cpp_extension torch.library",
    "calls a kernel",
    "supply the kernel: Pallas, jax.ffi, or jax.numpy",
)
add_absent_modules(
    "torch.autograd torch.func torch.autograd.functional torch.autograd.forward_ad",
    "belongs to PyTorch's automatic differentiation",
    "use jax.grad, jax.vjp, jax.jvp or jax.checkpoint",
)
add_absent_modules(
    "torch.nn torch.nn.init torch.nn.utils torch.nn.grad",
    "is a layer or a tool for layers",
    "pass its arrays as arguments",
)
add_absent_modules(
    "torch.distributions",
    "is a distribution that the port does not translate",
    "write its formula, as jax.scipy.stats has it",
)
add_absent_modules(
    "torch.sparse torch.nested torch.masked",
    "works on sparse or ragged tensors",
    "use jax.experimental.sparse, or a dense array",
)
add_absent(
    "torch.utils.data",
    "supplies data, which is the host's work",
    "iterate over NumPy arrays outside the file, or over PyTorch's own loader with batch.numpy()",
)
add_absent_modules("torch.random", "is a global random state", "pass a jax.random key")
add_absent_modules(
    "torch.jit torch.compiler torch._dynamo torch.fx torch.onnx torch.export torch.amp torch.utils torch.profiler torch.hub "
    "torch.multiprocessing torch.overrides torch.testing torch.quantization torch.ao torch._C "
    "torch.package torch.serialization torch.version torch.signal torch.utils.checkpoint torch.monitor torch.types",
    "is machinery of PyTorch, no operation on numbers",
    "leave it out, or use JAX's own: jax.jit, jax.checkpoint, jax.profiler",
)
